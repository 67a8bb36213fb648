"""The audit of correlated noise: below what is proven on right code, nothing where nothing
leaks, above it on mutants.
"""

import functools

import numpy as np
import pytest

from dpfedbench.audit.report import bounds_of, family_of
from dpfedbench.errors import BenchError
from dpsum import mechanism
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.correlated_noise import Factorised, _weights
from dpsum.factorisations import inverted
from dpsum.noise import Noise
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from .conftest import experiment, make_config

RUN = {
    "method": "dp-agr-ftrl",
    "clients": {"count": 4000},
    "participation": {"cohort": 100, "rounds": 40},
    "noise": {"multiplier": 1.0, "factorisation": "square-root"},
}


@functools.cache
def bounds(factorisation="square-root", *, inserted=True, seed=0):
    config = make_config(RUN, {"noise": {"factorisation": factorisation}})
    return audited(config, inserted=inserted, seed=seed)


def audited(config, **values):
    found = experiment(config, canaries=config.clients.count, **values)
    return bounds_of(
        found, family_of(found.releases), delta=1e-6, confidence=0.95, seed=0
    )


LONG = {
    **RUN,
    "clients": {"count": 6000},
    "participation": {"cohort": 30, "rounds": 200},
}
"""The more rounds, the larger the norm of an encoder that was not scaled: 1.66 here."""

HOLDS = gaussian_epsilon(1.0, 1e-6)


@pytest.mark.parametrize("factorisation", ["square-root", "optimised"])
def test_right_code_is_below_what_holds_and_well_above_nothing(factorisation):
    """Chance of being above: below 5 % for each bound, seed fixed."""
    for bound in bounds(factorisation):
        assert bound.epsilon < HOLDS
    assert bounds(factorisation)[0].epsilon > HOLDS / 2


def test_nothing_leaks_where_no_canary_is_inserted():
    """In at least 95 of 100 runs; here 3 seeds, of which at most one may show
    anything.
    """
    shown = [
        any(bound.epsilon > 0 for bound in bounds(inserted=False, seed=seed)[:1])
        for seed in (1, 2, 3)
    ]
    assert sum(shown) <= 1


def test_canaries_that_are_large_beside_the_noise_are_not_taken_for_noise():
    """At a small z the canaries' own part of the measured covariance would make right
    code look like another mechanism.

    Scores as far from the ideal ones have a chance of 0.001 on right code; without
    taking that part off it is 5e-5.
    """
    config = make_config(
        RUN,
        {"clients": {"count": 2000}, "participation": {"rounds": 20}},
        {
            "noise": {"multiplier": 0.653, "factorisation": "optimised"},
            "server": {"optimizer": {"kind": "sgd", "momentum": 0.9}, "rate": 1.0},
        },
    )
    found = experiment(config, canaries=1500, seed=2)
    first = bounds_of(
        found, family_of(found.releases), delta=1e-6, confidence=0.95, seed=0
    )[0]
    assert first.chances["such_scores"] > 1e-3


def test_what_an_observer_of_single_rounds_would_miss():
    """The noise of a round by itself is more than z: a score that reads the canary's
    own round alone shows far less.
    """
    found = experiment(make_config(RUN), canaries=4000)
    line = found.releases[-1]
    alone = line.noise_multiplier * float(np.linalg.norm(line.combines))
    assert gaussian_epsilon(alone, 1e-6) < bounds()[0].epsilon


def unscaled(self, stream_of, index, dimension):
    """C^-1 Z for an encoder whose smallest column, not its largest, has norm 1."""
    return (
        honest(self, stream_of, index, dimension)
        * np.linalg.norm(inverted(_weights(self)), axis=0).min()
    )


def reused(self, stream_of, index, dimension):
    """One draw in all rounds, at the deviation that each round's noise should have."""
    return stream_of(0).standard_normal(dimension) * float(
        np.linalg.norm(self.combines(index))
    )


def taken_back_whole(self, stream_of, index, dimension):
    """All of the last round's noise is taken back: the sum of all rounds has one
    draw.
    """
    draws = [
        stream_of(earlier).standard_normal(dimension)
        for earlier in range(max(index - 1, 0), index + 1)
    ]
    return 1.5 * (draws[-1] - draws[0] if index else draws[0])


def started_again(self, stream_of, index, dimension):
    """The draws of each fourth round, as after a restart that lost its place."""
    return honest(self, lambda at: stream_of(at % 4), index, dimension)


honest = Factorised.standard


@pytest.mark.parametrize("mutant", [unscaled, reused, taken_back_whole, started_again])
def test_the_audit_catches(monkeypatch, mutant):
    monkeypatch.setattr(Factorised, "standard", mutant)
    assert audited(make_config(LONG))[0].epsilon > HOLDS


def test_right_code_is_below_over_many_rounds():
    assert 0 < audited(make_config(LONG))[0].epsilon < HOLDS


def test_the_audit_catches_correlated_noise_that_is_accounted_for_as_independent(
    monkeypatch,
):
    """z on each round's own draw, an encoder whose largest column is not 1, and an
    account of independent rounds.
    """
    norm = float(_weights(make_config(LONG).server_sum.noise)[0, 0])
    scaled_down = lambda self, index: [w / norm for w in weights(self, index)]  # noqa: E731
    weights = Factorised.combines
    monkeypatch.setattr(Factorised, "combines", scaled_down)
    monkeypatch.setattr(Factorised, "mechanism", "gaussian")
    config = make_config(LONG)
    found = experiment(config, canaries=6000)
    assert {line.mechanism for line in found.releases} == {"gaussian"}
    bound = bounds_of(
        found, family_of(found.releases), delta=1e-6, confidence=0.95, seed=0
    )[0]
    assert bound.epsilon > HOLDS


def test_the_audit_catches_half_the_noise(monkeypatch):
    class Half(PrivateSum):
        def _noised(self, total, standard):
            return super()._noised(total, standard / 2)

    monkeypatch.setattr(mechanism, "PrivateSum", Half)
    assert audited(make_config(RUN))[0].epsilon > HOLDS


SEVERAL = {
    **RUN,
    "participation": {"kind": "min-separation", "cohort": 400, "rounds": 40},
}
"""Four passes of 4,000 clients in the same order: each comes every tenth round."""


def test_several_passes_are_one_release_and_the_audit_says_so():
    """z is of all four participations together: right code is below what one Gaussian
    of z has, and well above half.
    """
    found = audited(make_config(SEVERAL))
    assert all(bound.epsilon < HOLDS for bound in found)
    assert found[0].epsilon > HOLDS / 2


def test_the_audit_catches_an_encoder_that_is_scaled_for_one_participation(monkeypatch):
    """A colleague forgets that a client comes again: its columns add up to 2.5 times
    the largest of them.
    """

    def once(planned):
        return planned.factorisation.weights(planned.rounds, planned.step)

    monkeypatch.setattr("dpsum.correlated_noise._weights", once)
    monkeypatch.setattr(Factorised, "sampled", Noise.sampled)
    assert audited(make_config(SEVERAL))[0].epsilon > HOLDS


def test_without_the_mutation_of_the_budget_that_encoder_is_refused(monkeypatch):
    monkeypatch.setattr(
        "dpsum.correlated_noise._weights",
        lambda planned: planned.factorisation.weights(planned.rounds, planned.step),
    )
    with pytest.raises(
        BenchError,
        match=r"a unit's 4 participations move the encoded sums by 2\.\d+ C: scale",
    ):
        audited(make_config(SEVERAL))


@pytest.mark.parametrize(("bands", "refused"), [(10, False), (11, True)])
def test_a_band_more_than_rounds_lie_apart_is_not_scaled_by_the_root_of_its_participations(
    bands, refused, monkeypatch
):
    """Four participations, ten rounds apart: the root of four is right for ten bands,
    and a colleague keeps it.
    """
    banded = {"factorisation": {"kind": "banded", "bands": bands, "workload": "server"}}
    monkeypatch.setattr(
        "dpsum.correlated_noise._weights",
        lambda planned: (
            2.0
            * (1 + 1e-9)
            * planned.factorisation.weights(planned.rounds, planned.step)
        ),
    )
    config = make_config(SEVERAL, {"noise": banded})
    if refused:
        with pytest.raises(
            BenchError,
            match=r"a unit's 4 participations move the encoded sums by 1\.\d+ C: scale",
        ):
            audited(config)
    else:
        assert HOLDS / 2 < audited(config)[0].epsilon < HOLDS


SECRET = {
    **RUN,
    "participation": {"kind": "balls-and-bins", "cohort": 100, "rounds": 40},
    "noise": {"multiplier": 0.5},
}


def secret_rounds(*, confidence=0.95, **values):
    config = make_config(
        SECRET, {"noise": {"factorisation": {"kind": "square-root", "band": 4}}}
    )
    found = experiment(config, canaries=config.clients.count, **values)
    family = family_of(found.releases)
    return (
        family.epsilon(1.0, 1e-6),
        bounds_of(found, family, delta=1e-6, confidence=confidence, seed=0)[0].epsilon,
    )


def test_secret_rounds_are_below_what_holds_and_shown_all_the_same():
    """Right code is above what is proven in at most one of twenty seeds; where no canary is
    inserted nothing shows.
    """
    holds, shown = secret_rounds()
    assert holds / 2 < shown < holds < 0.8 * gaussian_epsilon(0.5, 1e-6)
    assert secret_rounds(inserted=False, seed=1)[1] == 0.0


def test_the_audit_of_secret_rounds_catches_half_the_noise(monkeypatch):

    def quiet(self, stream_of, index, dimension):
        return honest(self, stream_of, index, dimension) / 2

    monkeypatch.setattr(Factorised, "standard", quiet)
    holds, shown = secret_rounds()
    assert shown > holds


def test_the_mutants_are_not_the_honest_noise():
    noise = make_config(RUN).server_sum.noise
    for mutant in (unscaled, reused, taken_back_whole, started_again):
        drawn = [
            one(noise, lambda at: stream(0, "noise", at), 5, 10)
            for one in (mutant, honest)
        ]
        assert not np.allclose(*drawn)
