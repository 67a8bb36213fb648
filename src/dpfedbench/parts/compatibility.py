"""Rules between the parts of a run that `dpsum` defines: which clipping rule and noise
fit which participation, server step and validation.

`check_part` applies the rules of each class. `proof_assumptions` has the rules that the
privacy proofs require of any part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.parts.server.server_step import ServerStep, Step
from dpfedbench.settings.run import Run
from dpsum.clipping import INDICATOR, ClippingRule, NoisedMeanNorm, PrivateQuantile
from dpsum.correlated_noise import Factorised
from dpsum.factorisations import MOST, Optimised
from dpsum.noise import Decaying, Noise
from dpsum.participation import BallsAndBins, Participation, PoissonLots
from dpsum.skellam_noise import Skellam


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
            f"clipping.noise_by_group is {rule.noise_by_group}, but clipping.groups is"
            " all, so there is one group: set groups to layers or tensors"
        )
    if rule.groups != "all" and rule.threshold is None:
        raise BenchError(
            f"clipping.groups is {rule.groups}, but the rule {rule.kind} finds one"
            " threshold of all coordinates: give clipping.threshold, of each group"
        )
    if rule.threshold is None and not rule.finds_threshold:
        raise BenchError(
            f"clipping.threshold is null: the rule {rule.kind} needs a first threshold"
        )


def _check_noised_mean_norm(run: Run, rule: NoisedMeanNorm) -> None:
    if run.part(Noise).multiplier is None:
        raise BenchError(
            "noise.multiplier is null, but noised-mean-norm is a release more a"
            " lot: give a multiplier"
        )


def _check_private_quantile(run: Run, rule: PrivateQuantile) -> None:
    multiplier = run.part(Noise).multiplier
    deviation = rule.deviation(run.part(Participation).cohort)
    if multiplier is None or deviation / INDICATOR > multiplier:
        return
    reading = "null, so a twentieth of the cohort, " if rule.count_noise is None else ""
    raise BenchError(
        f"clipping.count_noise is {reading}{deviation:g}: private-quantile needs"
        f" more than half of noise.multiplier ({multiplier:g}), or the count"
        " alone costs all that may be spent"
    )


def _check_decaying(run: Run, noise: Decaying) -> None:
    if not run.validation.public:
        raise BenchError(
            "validation.public is false, but its loss drives the noise (noise.kind"
            " decaying): what it tells of private records is in no account; take"
            " public records, or noise.kind fixed"
        )
    if not run.validation.every:
        raise BenchError(
            "noise.kind is decaying, but validation.every is 0: set it to 1"
        )
    if noise.multiplier is None:
        raise BenchError(
            "noise.multiplier is null, but noise that decays needs a first value:"
            " give one"
        )


def _check_factorised(run: Run, noise: Factorised) -> None:
    plan = run.part(Participation)
    rule = run.part(ClippingRule)
    if not plan.correlated:
        raise BenchError(
            f"participation.kind is {plan.kind}, but correlated noise is accounted"
            " for where each client's rounds are known, or where each is in one"
            " secret round: take one-pass, min-separation or balls-and-bins, or"
            " noise.kind fixed"
        )
    if noise.rounds is not None and noise.rounds < plan.rounds:
        raise BenchError(
            f"noise.rounds is {noise.rounds}, fewer than participation.rounds"
            f" ({plan.rounds}): a factorisation has to be for all planned rounds;"
            " raise it, or set it to null"
        )
    if rule.kind != "constant":
        raise BenchError(
            f"clipping.kind is {rule.kind}, but correlated noise takes back"
            " what rounds at the same threshold added: take constant"
        )


def _check_optimised(run: Run, factorisation: Optimised) -> None:
    rounds = run.part(Participation).rounds
    if rounds > MOST:
        raise BenchError(
            f"participation.rounds is {rounds}, but the factorisation"
            f" {factorisation.kind} is found for at most {MOST}: take"
            " noise.factorisation.kind square-root"
        )
    if factorisation.workload == "server" and not run.part(ServerStep).linear:
        optimizer = run.part(Step).optimizer
        raise BenchError(
            "noise.factorisation.workload is server, but server.optimizer"
            f" {optimizer.kind} takes steps that are not linear in the sums: take"
            " sgd, or workload prefix"
        )


def _check_skellam(run: Run, noise: Skellam) -> None:
    plan = run.part(Participation)
    if not (plan.once and plan.known):
        raise BenchError(
            f"participation.kind is {plan.kind}, but the server of a secure sum"
            " knows who takes part, and the account covers one known round for"
            " each client: take one-pass"
        )
    if noise.gone(plan.cohort) > math.floor(noise.dropped_at_most * plan.cohort + 1e-9):
        raise BenchError(
            f"noise.dropped is {noise.dropped}, more than noise.dropped_at_most"
            f" ({noise.dropped_at_most}): those who stay would add less noise than"
            " the account counts; raise noise.dropped_at_most"
        )
    if noise.counted(plan.cohort) < 1:
        raise BenchError(
            "noise.dropped_at_most and noise.colluding leave no share of"
            f" {plan.cohort} clients' noise to count: lower them"
        )


def _check_balls_and_bins(run: Run, plan: BallsAndBins) -> None:
    count = run.clients.count
    planned = plan.cohort * plan.rounds
    if plan.rounds and count % plan.cohort == 0 and planned != count:
        raise BenchError(
            f"participation.cohort x participation.rounds is {planned}, but"
            f" balls-and-bins needs the {count} clients of clients.count exactly: try"
            f" {count // plan.cohort} rounds"
        )


def _check_participation(run: Run, plan: Participation) -> None:
    if isinstance(plan, PoissonLots):
        return  # compared with a client's records when these are known
    count = run.clients.count
    cohort = plan.cohort
    if cohort > count:
        raise BenchError(
            f"participation.cohort is {cohort}, more than clients.count ({count}):"
            " lower it or raise that"
        )
    if plan.blocks and count % cohort:
        raise BenchError(
            f"participation.cohort ({cohort}) does not divide clients.count ({count}),"
            f" as {plan.kind} needs: try"
            f" {max(size for size in range(1, cohort + 1) if count % size == 0)}"
        )
    if plan.blocks and plan.once and cohort * plan.rounds > count:
        raise BenchError(
            f"participation.rounds is {plan.rounds}, but {count} clients in cohorts of"
            f" {cohort} last for {count // cohort} rounds of {plan.kind}: lower rounds"
            " or raise clients.count"
        )


_CHECKS: Mapping[type, Callable[[Run, Any], None]] = {
    BallsAndBins: _check_balls_and_bins,
    Participation: _check_participation,
    ClippingRule: _check_clipping,
    NoisedMeanNorm: _check_noised_mean_norm,
    PrivateQuantile: _check_private_quantile,
    Decaying: _check_decaying,
    Factorised: _check_factorised,
    Optimised: _check_optimised,
    Skellam: _check_skellam,
}
