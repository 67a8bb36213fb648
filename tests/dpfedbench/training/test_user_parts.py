"""Noise and clipping rules of a user in the loop, and what is claimed for them."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.training.accounts import account_of
from dpsum.clipping import CohortRule, Constant
from dpsum.noise import Gaussian

from .conftest import fixed_rounds, make_config


class MisaccountedNoise(Gaussian):
    """Noise of a round, less half of the noise of the round before, accounted for as
    independent noise.
    """

    kind: ClassVar[str] = "careless"
    mechanism: ClassVar[str] = "correlated"

    def standard(self, stream_of, index, dimension):
        fresh = stream_of(index).standard_normal(dimension)
        if index == 0:
            return fresh
        return fresh - 0.5 * stream_of(index - 1).standard_normal(dimension)


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
    name: ClassVar[str] = "user-noise"
    clipping: CohortRule = Constant()
    noise: MisaccountedNoise = MisaccountedNoise()


class UserRule(DpAgr):
    name: ClassVar[str] = "user-rule"
    clipping: Halving = Halving(threshold=0.5)


class UserPeeking(UserRule):
    name: ClassVar[str] = "user-peeking"
    clipping: PeekingRule = PeekingRule(threshold=0.5)


def run_of(cls):
    values = make_config().plain()
    del values["clipping"], values["noise"]
    return cls.read(values | {"method": cls.name})


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
    """Neither the budget's plan nor the account takes it for Gaussian noise."""
    unknown = r"^no analysis for correlated noise with the sampler 'one-pass'"
    with pytest.raises(BenchError, match=unknown):
        fixed_rounds(run_of(UserNoise), np.zeros((48, 3)))
    run = make_config()
    lines = [
        dataclasses.replace(line, mechanism="correlated") for line in ledger_of(run)
    ]
    with pytest.raises(BenchError, match=unknown):
        account_of(run, lines)


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
