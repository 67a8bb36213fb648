"""Parts of one's own, written here as a reader would in a file: what the loop makes of
them, and what is claimed.
"""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import account_of
from dpfedbench.papers import METHODS
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpsum.clipping import CohortRule, Constant
from dpsum.noise import Gaussian, Noise
from dpsum.parameters import parameter

from .conftest import given_rounds, make_config, seen_of


class SpendsNothing:
    """In place of a budget plan: keeps no account, since there is none."""

    delta, lots_allowed = 1e-3, 12

    def __init__(self, multiplier):
        self.noise_multiplier = multiplier

    def allows(self, releases):
        return True

    def took(self, lots):
        pass

    def spent(self, done):
        return float("nan"), float("nan")

    def state(self):
        return {}


@dataclasses.dataclass(frozen=True)
class Correlated(Noise):
    """Each round's noise takes back a half of the one before."""

    kind: ClassVar[str] = "correlated"
    mechanism: ClassVar[str] = "correlated"
    multiplier: float | None = parameter(1.0, gt=0)

    def plan(self, budget, **given):
        return SpendsNothing(self.multiplier)

    def standard(self, stream_of, index, dimension):
        fresh = stream_of(index).standard_normal(dimension)
        return (
            fresh
            if index == 0
            else fresh - 0.5 * stream_of(index - 1).standard_normal(dimension)
        )


class Careless(Gaussian):
    """The same with the accounting of independent noise: who edits only the noise."""

    kind: ClassVar[str] = "careless"
    mechanism: ClassVar[str] = "correlated"
    standard = Correlated.standard


class Halving(CohortRule):
    """C is halved after each round."""

    kind: ClassVar[str] = "halving"

    def observe(self, state, seen):
        state["threshold"] /= 2


class OwnNoise(DpAgr):
    """DP-AGR with noise correlated over rounds."""

    name: ClassVar[str] = "own-noise"
    title: ClassVar[str] = "DP-AGR, correlated noise"
    clipping: CohortRule = Constant()
    noise: Correlated | Careless = Correlated()


class OwnRule(DpAgr):
    """DP-AGR with a rule of one's own."""

    name: ClassVar[str] = "own-rule"
    title: ClassVar[str] = "DP-AGR, halving"
    clipping: Halving = Halving(threshold=0.5)


def run_of(cls, **parts):
    values = {
        key: value
        for key, value in make_config().plain().items()
        if key not in ("clipping", "noise")
    }
    return cls.read(values | {"method": cls.name} | parts)


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    for cls in (OwnNoise, OwnRule):
        monkeypatch.setitem(METHODS, cls.name, cls)


def ledger_of(run):
    rounds = given_rounds(run, np.full((48, 3), 0.1))
    for index in range(12):
        rounds.round(index)
    return rounds.ledger


UNKNOWN = r"^no analysis for correlated noise with the sampler 'one-pass'"


def test_noise_of_an_unknown_mechanism_prints_no_epsilon():
    """Nor where only the draw was edited: there before the first round, since the
    budget's plan has no analysis.
    """
    run = run_of(OwnNoise)
    ledger = ledger_of(run)
    assert {line.mechanism for line in ledger} == {"correlated"}
    with pytest.raises(BenchError, match=UNKNOWN):
        account_of(run, ledger)
    careless = run_of(OwnNoise, noise={"kind": "careless", "multiplier": 1.0})
    with pytest.raises(BenchError, match=UNKNOWN):
        given_rounds(careless, np.zeros((48, 3)))


def test_noise_is_the_parts_own():
    """Zero gradients: what is released is the noise alone; round 1's less half of round
    0's by hand.
    """
    fixed = make_config({"clipping": {"kind": "constant"}})
    found, fresh = (
        [float(means[0][0]) for _, means in seen_of(run, np.zeros((48, 3)))]
        for run in (run_of(OwnNoise), fixed)
    )
    halves = [after - 0.5 * before for before, after in itertools.pairwise(fresh)]
    assert found == pytest.approx([fresh[0], *halves])


def test_a_rule_moves_the_threshold_and_needs_nothing_else():
    """It reads nothing, so it is post-processing: the account is that of any rule that
    is private.
    """
    run = run_of(OwnRule)
    ledger = ledger_of(run)
    assert [line.threshold for line in ledger] == [0.5**n for n in range(1, 13)]
    found, reference = (
        account_of(config, lines).profiles["holds"]
        for config, lines in ((run, ledger), (make_config(), ledger_of(make_config())))
    )
    assert found.status == "proved"
    assert found.epsilon_high == reference.epsilon_high


class Peeking(Halving):
    kind: ClassVar[str] = "peeking"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "it looks"


class OwnPeeking(OwnRule):
    name: ClassVar[str] = "own-peeking"
    clipping: Peeking = Peeking(threshold=0.5)


def test_a_rule_that_says_it_reads_raw_norms_has_no_finite_epsilon(monkeypatch):
    """And one that does not say so is not shown any."""
    norms = []
    observe = Halving.observe

    def watched(self, state, seen):
        norms.append(seen.raw_norms)
        observe(self, state, seen)

    monkeypatch.setattr(Halving, "observe", watched)
    for cls, status in ((OwnRule, "proved"), (OwnPeeking, "void")):
        rounds = given_rounds(run_of(cls), np.full((48, 3), 0.1))
        rounds.round(0)
        holds = account_of(run_of(cls), rounds.ledger).profiles["holds"]
        assert (holds.status == "void") == (status == "void")
    assert norms[0] is None and norms[1] == pytest.approx([0.1 * 3**0.5] * 4)


def test_parts_of_ones_own_make_runs_of_their_own():
    runs = (
        run_of(OwnNoise),
        run_of(OwnNoise, noise={"kind": "careless"}),
        run_of(OwnRule),
    )
    assert len({run.key for run in runs}) == 3
    assert run_of(OwnNoise, noise="correlated").key == runs[0].key
