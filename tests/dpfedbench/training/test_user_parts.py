"""Noise and clipping rules of a user in the loop, and what is claimed for them."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.training.accounts import account_of
from dpsum.clipping import CohortRule, Constant
from dpsum.noise import Gaussian, Noise
from dpsum.parameters import parameter

from .conftest import fixed_rounds, make_config, releases_of


class NoBudget:
    """Stand-in for a budget plan of noise that has no account."""

    delta = 1e-3
    lots_allowed = 12

    def __init__(self, multiplier):
        self.noise_multiplier = multiplier
        self.multipliers = [multiplier]

    def allows(self, releases):
        return True

    def charge(self, lots):
        pass

    def epsilon_spent(self, releases):
        return float("nan"), float("nan")

    def state(self):
        return {}


@dataclasses.dataclass(frozen=True)
class Correlated(Noise):
    """Noise of a round, less half of the noise of the round before."""

    kind: ClassVar[str] = "correlated"
    mechanism: ClassVar[str] = "correlated"
    multiplier: float | None = parameter(1.0, gt=0)

    def plan(self, budget, **context):
        return NoBudget(self.multiplier)

    def standard(self, stream_of, index, dimension):
        fresh = stream_of(index).standard_normal(dimension)
        if index == 0:
            return fresh
        return fresh - 0.5 * stream_of(index - 1).standard_normal(dimension)


class MisaccountedNoise(Gaussian):
    """The same draws as `Correlated`, accounted for as independent noise."""

    kind: ClassVar[str] = "careless"
    mechanism: ClassVar[str] = "correlated"
    standard = Correlated.standard


class Halving(CohortRule):
    """Clipping rule that halves C after each round."""

    kind: ClassVar[str] = "halving"

    def observe(self, state, observation):
        state["threshold"] /= 2


class PeekingRule(Halving):
    """A rule that declares that it reads raw norms."""

    kind: ClassVar[str] = "peeking"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "it looks"


class UserNoise(DpAgr):
    """DP-AGR with noise correlated over rounds."""

    name: ClassVar[str] = "user-noise"
    title: ClassVar[str] = "DP-AGR, correlated noise"
    clipping: CohortRule = Constant()
    noise: Correlated | MisaccountedNoise = Correlated()


class UserRule(DpAgr):
    """DP-AGR with a user's rule."""

    name: ClassVar[str] = "user-rule"
    title: ClassVar[str] = "DP-AGR, halving"
    clipping: Halving = Halving(threshold=0.5)


class UserPeeking(UserRule):
    name: ClassVar[str] = "user-peeking"
    clipping: PeekingRule = PeekingRule(threshold=0.5)


def run_of(cls, **parts):
    values = make_config().plain()
    del values["clipping"], values["noise"]
    return cls.read(values | {"method": cls.name} | parts)


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    for cls in (UserNoise, UserRule):
        monkeypatch.setitem(METHODS, cls.name, cls)


def ledger_of(run, count=12):
    rounds = fixed_rounds(run, np.full((48, 3), 0.1))
    for index in range(count):
        rounds.round(index)
    return rounds.ledger


@pytest.mark.filterwarnings("ignore::dpsum.NoAccountWarning")
def test_noise_of_an_unknown_mechanism_has_no_epsilon():
    """If a user changes the draw alone, the budget's plan is refused before the first
    round.
    """
    unknown = r"^no analysis for correlated noise with the sampler 'one-pass'"
    run = run_of(UserNoise)
    ledger = ledger_of(run)
    assert {line.mechanism for line in ledger} == {"correlated"}
    with pytest.raises(BenchError, match=unknown):
        account_of(run, ledger)
    careless = run_of(UserNoise, noise={"kind": "careless", "multiplier": 1.0})
    with pytest.raises(BenchError, match=unknown):
        fixed_rounds(careless, np.zeros((48, 3)))


@pytest.mark.filterwarnings("ignore::dpsum.NoAccountWarning")
def test_noise_is_drawn_by_the_users_part():
    """All gradients are zero, so the releases are noise, less half of the round before."""
    independent = make_config({"clipping": {"kind": "constant"}})
    zeros = np.zeros((48, 3))
    fresh = [float(means[0][0]) for _, means in releases_of(independent, zeros)]
    releases = releases_of(run_of(UserNoise), zeros)
    correlated = [float(means[0][0]) for _, means in releases]
    expected = [after - 0.5 * before for before, after in itertools.pairwise(fresh)]
    assert correlated == pytest.approx([fresh[0], *expected])


def test_rule_that_reads_nothing_has_the_account_of_any_private_rule():
    run = run_of(UserRule)
    ledger = ledger_of(run)
    assert [line.threshold for line in ledger] == [0.5**n for n in range(1, 13)]
    proof = account_of(run, ledger).profiles["proven"]
    reference = account_of(make_config(), ledger_of(make_config())).profiles["proven"]
    assert proof.status == "proved"
    assert proof.epsilon_high == reference.epsilon_high


def test_rule_that_declares_raw_norms_has_no_finite_epsilon(monkeypatch):
    """A rule without that declaration receives no norms."""
    norms = []
    observe = Halving.observe

    def watched(self, state, observation):
        norms.append(observation.raw_norms)
        observe(self, state, observation)

    monkeypatch.setattr(Halving, "observe", watched)
    for cls, void in ((UserRule, False), (UserPeeking, True)):
        run = run_of(cls)
        proof = account_of(run, ledger_of(run, count=1)).profiles["proven"]
        assert (proof.status == "void") == void
    assert norms[0] is None
    assert norms[1] == pytest.approx([0.1 * 3**0.5] * 4)


def test_user_parts_have_keys_of_their_own():
    keys = [
        run_of(UserNoise).key,
        run_of(UserNoise, noise={"kind": "careless"}).key,
        run_of(UserRule).key,
    ]
    assert len(set(keys)) == 3
    assert run_of(UserNoise, noise="correlated").key == keys[0]
