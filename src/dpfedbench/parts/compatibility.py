"""Rules between the parts of a run: which parts, data and sums go together.

`check_parts` applies all of them when a configuration is read: those of each part of
`dpsum` (which clipping rule and noise fit which participation, server step and
validation), and those of the clients' data and of the sums. `check_reading` and
`check_processes` are about the run as a whole. `proof_assumptions` has the rules that
the privacy proofs require of any part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpfedbench import plugins
from dpfedbench.breaches import breach_of_coupled_records, breaches_of
from dpfedbench.config.rules import Rule
from dpfedbench.errors import BenchError
from dpfedbench.run import check_rules
from dpsum.accounting.units import tells_rounds
from dpsum.clipping import INDICATOR, ClippingRule, NoisedMeanNorm, PrivateQuantile
from dpsum.correlated_noise import Factorised
from dpsum.factorisations import MOST, Optimised
from dpsum.noise import Decaying
from dpsum.participation import PoissonLots
from dpsum.skellam_noise import Skellam
from dpsum.sums import SumSpec, composition_groups

if TYPE_CHECKING:
    from dpfedbench.run import Run


def check_parts(run: Run) -> None:
    """Check the parts of a run against one another, its data and its sums.

    dpsum itself refuses clients that do not fit the participation, and sums over the
    same units that no account covers together.

    Raises:
        BenchError: two parts do not fit; names the keys and the remedy.
    """
    plan = run.participation
    if not isinstance(plan, PoissonLots):  # whose lots need the clients' records
        plan.plan(clients=run.clients.count, seed=0)
    rows = [
        (part, rule) for part in run.components for rule in library_rules(type(part))
    ]
    rows += [(run.client_update, rule) for rule in UPDATE_RULES]
    check_rules(rows, run)
    composition_groups(run.all_sums)
    rows = [(run.server_sum, rule) for rule in SERVER_RULES]
    rows += [(spec, rule) for rule in SUM_RULES for spec in run.all_sums]
    check_rules(rows, run)


def check_reading(run: Run) -> None:
    """Refuse a breach, unless `reading` is as-released.

    A run that is read as released has to have a breach, and no budget that stops it.

    Raises:
        BenchError: names the keys and the remedy.
    """
    breaches = breaches_of(run)
    if run.reading == "as-published":
        if breaches:
            raise BenchError(breaches[0].refusal)
        return
    if not breaches and all(sum_.private_rule.private for sum_ in run.private_sums):
        raise BenchError(
            f"reading is as-released, but this run of {run.name} has an account that"
            " covers all it does: leave reading out"
        )
    for sum_ in run.all_sums:
        budget = sum_.budget
        if budget is not None and budget.epsilon is not None and budget.stop:
            raise BenchError(
                "reading is as-released, which has no finite proven ε, but"
                f" budget.epsilon ({budget.epsilon:g}) stops the training: set"
                " budget.epsilon to null, or budget.stop to false"
            )


def check_processes(run: Run, count: int) -> None:
    """Refuse more processes than can share a round.

    A round cannot have more processes than clients. A sum whose noise takes each
    client's message by itself runs in one process.

    Raises:
        BenchError: too many processes; the message gives the largest possible
            number.
    """
    if count > 1 and any(
        sum_.noise is not None and sum_.noise.one_by_one for sum_ in run.all_sums
    ):
        raise BenchError(
            f"machine.processes is {count}, but the sum of {run.folder} processes"
            " each client's message separately, in one process: set it to 1"
        )
    most = (
        run.participation.clients_per_round(run.clients.count) if run.trained else count
    )
    if count > most:
        raise BenchError(
            f"machine.processes is {count}, but a round of {run.folder} has {most}"
            f" client{'s' * (most != 1)} to divide among the processes: set it to"
            f" {most}{' or less' * (most != 1)}"
        )


@plugins.cached
def library_rules(cls: type) -> tuple[Rule, ...]:
    """Return the rules of a class of `dpsum`; none of another class."""
    return tuple(
        rule
        for base, rules in PART_RULES.items()
        if issubclass(cls, base)
        for rule in rules
    )


def _spent_by_counts(rule: PrivateQuantile, run: Run) -> str:
    """Return the noise of counts that alone spend the whole budget."""
    multiplier = run.noise.multiplier
    deviation = rule.deviation(run.participation.cohort)
    if multiplier is None or deviation / INDICATOR > multiplier:
        return ""
    reading = "null, so a twentieth of the cohort, " if rule.count_noise is None else ""
    return f"{reading}{deviation:g}"


PART_RULES: Mapping[type, tuple[Rule, ...]] = {
    ClippingRule: (
        Rule(
            lambda rule, run: rule.groups == "all" and rule.noise_by_group != "joint",
            "clipping.noise_by_group is {part.noise_by_group}, but clipping.groups"
            " is all, so there is only one group: set groups to layers or tensors",
        ),
        Rule(
            lambda rule, run: rule.groups != "all" and rule.threshold is None,
            "clipping.groups is {part.groups}, but the rule {part.kind} computes one"
            " threshold for all coordinates: set clipping.threshold, for each group",
        ),
        Rule(
            lambda rule, run: rule.threshold is None and not rule.finds_threshold,
            "clipping.threshold is null: the rule {part.kind} needs a first threshold",
        ),
    ),
    NoisedMeanNorm: (
        Rule(
            lambda rule, run: run.noise.multiplier is None,
            "noise.multiplier is null, but noised-mean-norm makes a further release"
            " in each lot: set noise.multiplier",
        ),
    ),
    PrivateQuantile: (
        Rule(
            _spent_by_counts,
            "clipping.count_noise is {fault}: private-quantile needs more than half"
            " of noise.multiplier ({run.noise.multiplier:g}), or the count alone"
            " spends the whole budget",
        ),
    ),
    Decaying: (
        Rule(
            lambda noise, run: not run.validation.every,
            "noise.kind is decaying, but validation.every is 0: set it to 1",
        ),
        Rule(
            lambda noise, run: noise.multiplier is None,
            "noise.multiplier is null, but decaying noise needs a first value: set it",
        ),
    ),
    Factorised: (
        Rule(
            lambda noise, run: not run.participation.correlated,
            "participation.kind is {run.participation.kind}, but correlated noise"
            " needs known rounds of each client, or one secret round for each: take"
            " one-pass, min-separation or balls-and-bins, or noise.kind fixed",
        ),
        Rule(
            lambda noise, run: (
                noise.rounds is not None and noise.rounds < run.participation.rounds
            ),
            "noise.rounds is {part.rounds}, fewer than participation.rounds"
            " ({run.participation.rounds}): the factorisation must cover all planned"
            " rounds; raise it, or set it to null",
        ),
        Rule(
            lambda noise, run: run.clipping.kind != "constant",
            "clipping.kind is {run.clipping.kind}, but correlated noise cancels only"
            " between rounds with the same threshold: take constant",
        ),
    ),
    Optimised: (
        Rule(
            lambda factorisation, run: run.participation.rounds > MOST and MOST,
            "participation.rounds is {run.participation.rounds}, but the"
            " factorisation {part.kind} is computed for at most {fault} rounds: take"
            " noise.factorisation.kind square-root",
        ),
        # Every other step than one by an optimiser is linear.
        Rule(
            lambda factorisation, run: (
                factorisation.workload == "server" and not run.server.linear
            ),
            "noise.factorisation.workload is server, but server.optimizer"
            " {run.server.optimizer.kind} makes steps that are not linear in the sums:"
            " take sgd, or workload prefix",
        ),
    ),
    Skellam: (
        Rule(
            lambda noise, run: (
                not run.participation.once or not run.participation.known
            ),
            "participation.kind is {run.participation.kind}, but the server of a"
            " secure sum knows who takes part, and the account covers one known round"
            " for each client: take one-pass",
        ),
        Rule(
            lambda noise, run: (
                noise.gone(run.participation.cohort)
                > math.floor(noise.dropped_at_most * run.participation.cohort + 1e-9)
            ),
            "noise.dropped is {part.dropped}, more than noise.dropped_at_most"
            " ({part.dropped_at_most}): the remaining clients would add less noise"
            " than the account counts; raise noise.dropped_at_most",
        ),
        Rule(
            lambda noise, run: noise.counted(run.participation.cohort) < 1,
            "noise.dropped_at_most and noise.colluding leave no share of"
            " {run.participation.cohort} clients' noise to count: lower them",
        ),
    ),
}
"""Rules of the parts of `dpsum`, which know no run. Other parts state their own."""


def _partitions_of(update: Any, run: Run) -> str:
    """Return the partitions that fit a client update; "" if the run's does."""
    if run.clients.holds == update.client_data:
        return ""
    return " or ".join(run.clients.kinds(update.client_data))


def _moving_rule_of_unequal_clients(update: Any, run: Run) -> ClippingRule | None:
    if run.clients.equal_sizes:
        return None
    rules = [spec.clipping for spec in run.client_sums]
    return next((rule for rule in rules if rule is not None and rule.moves), None)


def _held_out_fault(update: Any, run: Run) -> str:
    """Return why the examples that clients hold out cannot be held out, or ""."""
    clients = run.clients
    if not clients.held_out_share:
        return ""
    of_records = update.client_data == "records"
    takes_sums = of_records and bool(run.client_sums)
    if run.pretrains or run.task.text is not None or takes_sums:
        return (
            f"but the clients of {run.name} with client_update.kind {update.kind} have"
            " no held-out test: only few-shot clients of images, and clients that hold"
            " records and send messages to the server's sums, have one; set it to 0"
        )
    if of_records:
        return ""
    if not clients.disjoint:
        kinds = " or ".join(clients.kinds("tasks", disjoint=True))
        return (
            f"but with clients.partition {clients.partition} an example that one client"
            f" holds out may be in the training data of another: take {kinds}"
        )
    used = clients.support_per_class + clients.query_per_class
    if used + clients.left_out_per_class > clients.examples_per_class:
        return (
            f"but of {clients.examples_per_class} examples of a class"
            f" (clients.examples_per_class) training uses {used}: raise"
            " clients.examples_per_class, or lower held_out_share"
        )
    return ""


def _has_other_shots(update: Any, run: Run) -> bool:
    """Return whether task.shots is of another kind of test than the client update."""
    tests_as_it_is = update.client_data == "records" and not run.pretrains
    return tests_as_it_is != (run.task.shots == 0)


def _refusal_of_coupled_records(update: Any, run: Run) -> str:
    breach = breach_of_coupled_records(run)
    if breach is None or update.couples_records:
        return ""
    return breach.refusal


def _has_several_participations(update: Any, run: Run) -> bool:
    """Return whether clients whose own sums count one participation have more."""
    is_within_task = any(spec.within_task is not None for spec in run.client_sums)
    return is_within_task and not run.participation.once


UPDATE_RULES = (
    Rule(
        _partitions_of,
        "clients.partition is {run.clients.partition}, which does not go with"
        " client_update.kind {part.kind}: take {fault}, whose clients hold"
        " {part.client_data}",
    ),
    Rule(
        lambda update, run: not run.clients.equal_sizes and not update.any_size,
        "clients.partition is {run.clients.partition}, whose clients hold different"
        " numbers of records, but client_update.kind {part.kind} needs equal numbers:"
        " take another partition",
    ),
    Rule(
        _moving_rule_of_unequal_clients,
        "clipping.kind is {fault.kind}, which compares a release with the expected lot"
        " size, but with clients.partition {run.clients.partition} lot sizes differ"
        " between clients: take constant",
    ),
    Rule(
        _held_out_fault,
        "clients.held_out_share is {run.clients.held_out_share:g}, {fault}",
    ),
    Rule(
        _has_other_shots,
        "task.shots is {run.task.shots}, which does not fit client_update.kind"
        " {part.kind}: set it to 0 if models are tested without adaptation, otherwise"
        " to at least 1",
    ),
    Rule(
        lambda update, run: (
            run.pretrains and (run.validation.every or run.evaluation.every)
        ),
        "validation.every and evaluation.every need a model that is tested without"
        " adaptation: set both to 0 for a model with a new last layer in the test",
    ),
    Rule(_refusal_of_coupled_records, "{fault}"),
    Rule(
        _has_several_participations,
        "participation.kind is {run.participation.kind}, but within_task accounts for"
        " one participation of a client: use one-pass or balls-and-bins",
    ),
)
"""Rules between what clients compute and the data that they hold."""


def _further_message_fault(server: SumSpec, run: Run) -> str:
    """Return why clients' further messages do not fit the further sums, or ""."""
    kind = run.client_update.kind
    sent = run.client_update.sends_too
    taken = tuple(spec.name for spec in run.further_sums)
    if taken == sent:
        return ""
    unsent = ", ".join(name for name in taken if name not in sent)
    if unsent:
        return (
            f"{run.name} takes the sum {unsent}, but client_update.kind {kind} sends"
            " nothing to it: name it in the sends_too of the client update, whose"
            " contributions then yield a message for it, or take another client update"
        )
    untaken = ", ".join(name for name in sent if name not in taken)
    if untaken:
        return (
            f"client_update.kind {kind} also sends {untaken}, but {run.name} has no"
            " such sum: give its sums() a SumSpec of that name before the last, or take"
            " a method of these clients"
        )
    return (
        f"the further sums of {run.name} are {', '.join(taken)}, in another order than"
        f" the sends_too of client_update.kind {kind}: give both one order"
    )


def _further_sum_of_other_privacy(server: SumSpec, run: Run) -> SumSpec | None:
    if not server.private:
        return None
    for spec in run.further_sums:
        same = (spec.unit, spec.budget) == (server.unit, server.budget)
        if not spec.private or not same:
            return spec
    return None


def _client_sums_of_two_sections(
    server: SumSpec, run: Run
) -> tuple[SumSpec, SumSpec] | None:
    sums = run.within_task_sums
    if all(spec.within_task == sums[0].within_task for spec in sums):
        return None
    return sums[0], sums[-1]


def _limit_of_two_runs(server: SumSpec, run: Run) -> float | None:
    """Return the limit on ε of a run whose account covers another run too."""
    if "ledger.jsonl" not in run.references:
        return None
    limits = [spec.budget.epsilon for spec in run.private_sums if spec.budget]
    return next((limit for limit in limits if limit is not None), None)


def _refusal_of_unknown_rounds(server: SumSpec, run: Run) -> str:
    sums = run.within_task_sums
    if not sums or not server.private or run.participation.known:
        return ""
    if server.unit != sums[0].unit:
        return ""
    return tells_rounds(sums[0], run.participation.kind)


SERVER_RULES = (
    Rule(
        lambda server, run: server.taken_by != "server",
        "the last sum of {run.name} is not taken by the server, but the server updates"
        " the model with the last sum: list the clients' sums first",
    ),
    Rule(
        lambda server, run: not run.shares_all and run.client_sums,
        "the clients of {run.name} share {run.shared} alone, but {fault[0].name} is a"
        ' client\'s sum over all coordinates: set shared = "all" on the method, or use'
        " server sums alone",
    ),
    Rule(_further_message_fault, "{fault}"),
    Rule(
        lambda server, run: server.shape is not None,
        "{part.name} is the last sum of {run.name}, along which the server steps, but it"
        " has the shape {part.shape}: put a sum of the model's weights last",
    ),
    Rule(
        _further_sum_of_other_privacy,
        "{fault.name} adds up the same contributions as {part.name}, which is private:"
        " give it noise, the unit {part.unit} and the same budget",
    ),
    Rule(
        _client_sums_of_two_sections,
        "{fault[0].name} and {fault[1].name} are clients' own sums with two different"
        " sections: give both the same section",
    ),
    Rule(
        _limit_of_two_runs,
        "budget.epsilon is {fault:g}, but this run uses a private run on the same"
        " records, so its ε covers both runs, and a budget covers only one: set"
        " budget.epsilon to null and noise.multiplier to a number",
    ),
    Rule(_refusal_of_unknown_rounds, "{fault}"),
)
"""Rules between the sums of a round; the part is the server's sum."""

SUM_RULES = (
    Rule(
        lambda spec, run: (
            spec.private
            and spec.private_rule.groups != "all"
            and spec.noise.mechanism != "gaussian"
        ),
        "clipping.groups is {part.clipping.groups}, but {part.noise.mechanism} noise"
        " has no analysis by groups: set clipping.groups to all, or take another noise",
    ),
    Rule(
        lambda spec, run: (
            spec.private
            and spec.private_rule.groups != "all"
            and spec.taken_by == "client"
            and spec.within_task is None
        ),
        "clipping.groups is {part.clipping.groups}, but {part.name} is each client's"
        " own sum, which is clipped as a whole: set clipping.groups to all",
    ),
    Rule(
        lambda spec, run: (
            spec.shape is not None
            and spec.clipping is not None
            and spec.clipping.groups != "all"
        ),
        "{part.name} has a shape of its own, but its clipping.groups is"
        " {part.clipping.groups}, which are groups of the model's weights: set it to"
        " all",
    ),
    Rule(
        lambda spec, run: (
            spec.private
            and spec.budget is not None
            and spec.budget.epsilon is None
            and spec.noise.multiplier is None
        ),
        "noise.multiplier and budget.epsilon are both null: give one",
    ),
)
"""Rules of each sum of a round."""
