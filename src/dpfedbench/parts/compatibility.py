"""Rules between the parts of a run: which parts, data and sums go together.

`check_parts` applies all of them when a configuration is read: those of each part of
`dpsum` (which clipping rule and noise fit which participation, server step and
validation), and those of the clients' data and of the sums. `check_reading` and
`check_processes` are about the run as a whole. `proof_assumptions` has the rules that
the privacy proofs require of any part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpfedbench.breaches import breach_of_coupled_records, breaches_of
from dpfedbench.errors import BenchError
from dpfedbench.networks import shares_all
from dpfedbench.parts.server.server_step import Step
from dpsum.accounting.units import tells_rounds
from dpsum.clipping import INDICATOR, ClippingRule, NoisedMeanNorm, PrivateQuantile
from dpsum.correlated_noise import Factorised
from dpsum.factorisations import MOST, Optimised
from dpsum.noise import Decaying
from dpsum.participation import Participation, PoissonLots
from dpsum.skellam_noise import Skellam
from dpsum.sums import composition_groups

if TYPE_CHECKING:
    from dpfedbench.run import Run


def check_parts(run: Run) -> None:
    """Check the parts of a run against one another, its data and its sums.

    Raises:
        BenchError: two parts do not fit; names the keys and the remedy.
    """
    for component in run.components:
        check_part(run, component)
    _check_data(run)
    _check_records(run)
    _check_sums(run)


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


def _check_data(run: Run) -> None:
    """Refuse clients whose data, or a test whose shots, do not fit the client update."""
    held = run.client_update.client_data
    clients = run.clients
    records = held == "records"
    if held != clients.holds:
        raise BenchError(
            f"clients.partition is {clients.partition}, which does not go with"
            f" client_update.kind {run.client_update.kind}: take"
            f" {' or '.join(clients.kinds(held))}, whose clients hold {held}"
        )
    if not clients.equal_sizes and not run.client_update.any_size:
        raise BenchError(
            f"clients.partition is {clients.partition}, whose clients hold different"
            f" numbers of records, but client_update.kind {run.client_update.kind} needs"
            " equal numbers: take another partition"
        )
    for sum_ in () if clients.equal_sizes else run.client_sums:
        if sum_.clipping is not None and sum_.clipping.moves:
            raise BenchError(
                f"clipping.kind is {sum_.clipping.kind}, which compares a release"
                " with the expected lot size, but with clients.partition"
                f" {clients.partition} lot sizes differ between clients: take"
                " constant"
            )
    if clients.held_out_share:
        _check_personal_test(run, records)
    as_it_is = records and not run.pretrains
    if as_it_is != (run.task.shots == 0):
        raise BenchError(
            f"task.shots is {run.task.shots}, which does not fit client_update.kind"
            f" {run.client_update.kind}: set it to 0 if models are tested without"
            " adaptation, otherwise to at least 1"
        )
    if run.pretrains and (run.validation.every or run.evaluation.every):
        raise BenchError(
            "validation.every and evaluation.every need a model that is tested"
            " without adaptation: set both to 0 for a model with a new last layer"
            " in the test"
        )


def _check_personal_test(run: Run, records: bool) -> None:
    """Refuse a test of clients' own models where no examples can be held out."""
    clients = run.clients
    where = f"clients.held_out_share is {clients.held_out_share:g}, but"
    without = run.pretrains or run.task.text is not None
    if without or (records and run.client_sums):
        raise BenchError(
            f"{where} the clients of {run.name} with client_update.kind"
            f" {run.client_update.kind} have no held-out test: only few-shot clients"
            " of images, and clients that hold records and send messages to the"
            " server's sums, have one; set it to 0"
        )
    if records:
        return
    if not clients.disjoint:
        raise BenchError(
            f"{where} with clients.partition {clients.partition} an example that one"
            " client holds out may be in the training data of another: take"
            f" {' or '.join(clients.kinds('tasks', disjoint=True))}"
        )
    used = clients.support_per_class + clients.query_per_class
    if used + clients.left_out_per_class > clients.examples_per_class:
        raise BenchError(
            f"{where} of {clients.examples_per_class} examples of a class"
            f" (clients.examples_per_class) training uses {used}: raise"
            " clients.examples_per_class, or lower held_out_share"
        )


def _check_records(run: Run) -> None:
    """Refuse a model or participation that does not fit sums over records."""
    coupling = breach_of_coupled_records(run)
    if coupling is not None and not run.client_update.couples_records:
        raise BenchError(coupling.refusal)
    within = [sum_ for sum_ in run.client_sums if sum_.within_task is not None]
    if within and not run.participation.once:
        raise BenchError(
            f"participation.kind is {run.participation.kind}, but within_task"
            " accounts for one participation of a client: use one-pass or"
            " balls-and-bins"
        )


def _check_sums(run: Run) -> None:
    """Refuse sums over the same units that no account covers together."""
    composition_groups(run.all_sums)
    if run.all_sums[-1].taken_by != "server":
        raise BenchError(
            f"the last sum of {run.name} is not taken by the server, but the server"
            " updates the model with the last sum: list the clients' sums first"
        )
    _check_groups(run)
    if run.client_sums and not shares_all(run):
        raise BenchError(
            f"the clients of {run.name} share {run.shared} alone, but"
            f" {run.client_sums[0].name} is a client's sum over all coordinates: set"
            ' shared = "all" on the method, or use server sums alone'
        )
    sums = run.further_sums
    server = run.server_sum
    if tuple(sum_.name for sum_ in sums) != run.client_update.sends_too:
        raise BenchError(
            f"the clients of client_update.kind {run.client_update.kind} also send"
            f" {', '.join(run.client_update.sends_too)}, but {run.name} takes further"
            f" sums of {', '.join(sum_.name for sum_ in sums) or 'nothing'}: take a"
            " method of these clients"
        )
    for sum_ in sums if server.private else ():
        if not sum_.private or (sum_.unit, sum_.budget) != (
            server.unit,
            server.budget,
        ):
            raise BenchError(
                f"{sum_.name} adds up the same contributions as {server.name}, which"
                f" is private: give it noise, the unit {server.unit} and the same"
                " budget"
            )
    client_sums = [
        sum_
        for sum_ in run.client_sums
        if sum_.private and sum_.within_task is not None
    ]
    if any(sum_.within_task != client_sums[0].within_task for sum_ in client_sums):
        raise BenchError(
            f"{client_sums[0].name} and {client_sums[-1].name} are clients' own sums"
            " with two different sections: give both the same section"
        )
    limits = [
        sum_.budget.epsilon for sum_ in run.private_sums if sum_.budget is not None
    ]
    if any(limit is not None for limit in limits) and "ledger.jsonl" in run.references:
        raise BenchError(
            f"budget.epsilon is {limits[0]:g}, but this run uses a private run on the"
            " same records, so its ε covers both runs, and a budget covers only one:"
            " set budget.epsilon to null and noise.multiplier to a number"
        )
    unlimited = [
        sum_
        for sum_ in run.all_sums
        if sum_.budget is not None and sum_.budget.epsilon is None
    ]
    if any(
        sum_.private and sum_.private_noise.multiplier is None for sum_ in unlimited
    ):
        raise BenchError("noise.multiplier and budget.epsilon are both null: give one")
    plan = run.participation
    if (
        client_sums
        and server.private
        and server.unit == client_sums[0].unit
        and not plan.known
    ):
        raise BenchError(tells_rounds(client_sums[0], plan.kind))


def _check_groups(run: Run) -> None:
    """Refuse groups of coordinates that no analysis or no code supports."""
    names = [sum_.name for sum_ in run.client_sums]
    for sum_ in run.all_sums:
        if not sum_.private or sum_.private_rule.groups == "all":
            continue
        where = f"clipping.groups is {sum_.private_rule.groups}, but"
        if sum_.private_noise.mechanism != "gaussian":
            raise BenchError(
                f"{where} {sum_.private_noise.mechanism} noise has no analysis by groups:"
                " set clipping.groups to all, or take another noise"
            )
        if sum_.name in names and sum_.within_task is None:
            raise BenchError(
                f"{where} {sum_.name} is each client's own sum, which is clipped as a"
                " whole: set clipping.groups to all"
            )


def check_part(run: Run, part: Any) -> None:
    """Check a part of `dpsum` against the other parts of its run.

    Raises:
        BenchError: the parts do not fit; names the keys and the remedy.
    """
    for cls, check in _CHECKS.items():
        if isinstance(part, cls):
            check(run, part)


def _check_clipping(run: Run, rule: ClippingRule) -> None:
    if rule.groups == "all" and rule.noise_by_group != "joint":
        raise BenchError(
            f"clipping.noise_by_group is {rule.noise_by_group}, but clipping.groups"
            " is all, so there is only one group: set groups to layers or tensors"
        )
    if rule.groups != "all" and rule.threshold is None:
        raise BenchError(
            f"clipping.groups is {rule.groups}, but the rule {rule.kind} computes one"
            " threshold for all coordinates: set clipping.threshold, for each group"
        )
    if rule.threshold is None and not rule.finds_threshold:
        raise BenchError(
            f"clipping.threshold is null: the rule {rule.kind} needs a first threshold"
        )


def _check_noised_mean_norm(run: Run, rule: NoisedMeanNorm) -> None:
    if run.noise.multiplier is None:
        raise BenchError(
            "noise.multiplier is null, but noised-mean-norm makes a further release"
            " in each lot: set noise.multiplier"
        )


def _check_private_quantile(run: Run, rule: PrivateQuantile) -> None:
    multiplier = run.noise.multiplier
    deviation = rule.deviation(run.participation.cohort)
    if multiplier is None or deviation / INDICATOR > multiplier:
        return
    reading = "null, so a twentieth of the cohort, " if rule.count_noise is None else ""
    raise BenchError(
        f"clipping.count_noise is {reading}{deviation:g}: private-quantile needs more"
        f" than half of noise.multiplier ({multiplier:g}), or the count alone spends"
        " the whole budget"
    )


def _check_decaying(run: Run, noise: Decaying) -> None:
    if not run.validation.every:
        raise BenchError(
            "noise.kind is decaying, but validation.every is 0: set it to 1"
        )
    if noise.multiplier is None:
        raise BenchError(
            "noise.multiplier is null, but decaying noise needs a first value: set it"
        )


def _check_factorised(run: Run, noise: Factorised) -> None:
    plan = run.participation
    if not plan.correlated:
        raise BenchError(
            f"participation.kind is {plan.kind}, but correlated noise needs known"
            " rounds of each client, or one secret round for each: take one-pass,"
            " min-separation or balls-and-bins, or noise.kind fixed"
        )
    if noise.rounds is not None and noise.rounds < plan.rounds:
        raise BenchError(
            f"noise.rounds is {noise.rounds}, fewer than participation.rounds"
            f" ({plan.rounds}): the factorisation must cover all planned rounds;"
            " raise it, or set it to null"
        )
    if run.clipping.kind != "constant":
        raise BenchError(
            f"clipping.kind is {run.clipping.kind}, but correlated noise cancels only"
            " between rounds with the same threshold: take constant"
        )


def _check_optimised(run: Run, factorisation: Optimised) -> None:
    rounds = run.participation.rounds
    if rounds > MOST:
        raise BenchError(
            f"participation.rounds is {rounds}, but the factorisation"
            f" {factorisation.kind} is computed for at most {MOST} rounds: take"
            " noise.factorisation.kind square-root"
        )
    if factorisation.workload == "server" and not run.server.linear:
        assert isinstance(run.server, Step)  # every other step is linear
        optimizer = run.server.optimizer
        raise BenchError(
            "noise.factorisation.workload is server, but server.optimizer"
            f" {optimizer.kind} makes steps that are not linear in the sums: take"
            " sgd, or workload prefix"
        )


def _check_skellam(run: Run, noise: Skellam) -> None:
    plan = run.participation
    if not (plan.once and plan.known):
        raise BenchError(
            f"participation.kind is {plan.kind}, but the server of a secure sum"
            " knows who takes part, and the account covers one known round for"
            " each client: take one-pass"
        )
    if noise.gone(plan.cohort) > math.floor(noise.dropped_at_most * plan.cohort + 1e-9):
        raise BenchError(
            f"noise.dropped is {noise.dropped}, more than noise.dropped_at_most"
            f" ({noise.dropped_at_most}): the remaining clients would add less noise"
            " than the account counts; raise noise.dropped_at_most"
        )
    if noise.counted(plan.cohort) < 1:
        raise BenchError(
            "noise.dropped_at_most and noise.colluding leave no share of"
            f" {plan.cohort} clients' noise to count: lower them"
        )


def _check_participation(run: Run, plan: Participation) -> None:
    if not isinstance(plan, PoissonLots):  # whose lots need the clients' records
        plan.plan(clients=run.clients.count, seed=0)


_CHECKS: Mapping[type, Callable[[Run, Any], None]] = {
    Participation: _check_participation,
    ClippingRule: _check_clipping,
    NoisedMeanNorm: _check_noised_mean_norm,
    PrivateQuantile: _check_private_quantile,
    Decaying: _check_decaying,
    Factorised: _check_factorised,
    Optimised: _check_optimised,
    Skellam: _check_skellam,
}
