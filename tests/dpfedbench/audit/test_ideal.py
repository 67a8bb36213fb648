"""What an ideal attacker would show: its draws, how often right code is far below it,
and what else is.

A bound far below it says that the audit's attack was on another mechanism than the
ledger's. The mechanisms here leak other amounts than their accounts say, or as much,
and no bound is above what is proven.
"""

import numpy as np
import pytest
from scipy import stats

from dpfedbench.audit.own_sums import one_run_of_examples, one_run_of_updates
from dpfedbench.audit.report import audit, family_of, own_family
from dpfedbench.papers import gbml
from dpsum import mechanism, participation
from dpsum.audit.ideal import chance_of_such, gaussian, secret
from dpsum.audit.ranks import IDEALS, RankTest
from dpsum.participation import RecordLots
from dpsum.private_sum import PrivateSum
from tests.dpsum.audit.test_ranks import RATE, ROUNDS, draw_ratios

from . import test_correlated, test_secure_sum
from .conftest import LOTS, experiment, make_config

REPTILE = {
    "method": "dp-reptile",
    "client_update": {"batches": "poisson", "inner_steps": 5},
    "within_task": {"epsilon": None, "multiplier": 0.8},
}
POISSON = {
    "clients": {"count": 2000},
    "participation": {"kind": "poisson", "cohort": 100, "rounds": 20},
    "clipping": {"kind": "constant"},
}
STEPS = {
    "client_update": {"inner_steps": 50},
    "participation": {"cohort": 20, "rounds": 1},
    "noise": {"multiplier": 2.0},
    "clients": {"count": 10, "fragments": 10},
}
FEW = {"clients": {"count": 400}, "participation": {"rounds": 10}}
MORE_CAME = {"noise": {"dropped": 0.3, "dropped_at_most": 0.75}}


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("kind", ["one-pass", "poisson", "balls-and-bins"])
def test_draws_have_the_law_of_the_sampler(kind, present):
    """Kolmogorov and Smirnov, 20,000 of each, against draws of the sampler itself;
    false alarm 1e-3 each.
    """
    coins, ratios = draw_ratios(kind, 20_000, 1, present=present)
    rng = np.random.default_rng(2)
    if kind == "one-pass":
        found = gaussian(coins, 1.0, rng)
    else:
        found = secret(
            coins,
            [1.0] * ROUNDS,
            rng,
            rate=RATE,
            once=ROUNDS * (kind == "balls-and-bins"),
        )
        found -= np.log(ROUNDS) if kind == "balls-and-bins" else 0.0
    assert stats.ks_2samp(found, ratios).pvalue > 1e-3
    other, wrong = (
        draw_ratios(kind, 20_000, 3, present=present, z=0.8),
        draw_ratios(kind, 20_000, 3, present=not present),
    )
    assert max(stats.ks_2samp(found, each[1]).pvalue for each in (other, wrong)) < 1e-3


def served(*overlays, canaries=400):
    config = make_config(*overlays)
    return family_of, lambda seed: experiment(config, seed=seed, canaries=canaries)


def own(one_run, overlay):
    config = make_config(overlay)
    of = (
        family_of
        if one_run is one_run_of_updates
        else lambda releases: own_family(releases, 1e-3)
    )
    return of, lambda seed: one_run(config, seed=seed, canaries=400)


RIGHT = {
    "one-pass": lambda: served(),
    "balls-and-bins": lambda: served({"participation": {"kind": "balls-and-bins"}}),
    "little noise": lambda: served(
        {"participation": {"kind": "balls-and-bins"}, "noise": {"multiplier": 0.3}}
    ),
    "poisson": lambda: served({"participation": {"kind": "poisson"}}),
    "lots": lambda: served(LOTS),
    "a count beside it": lambda: served(
        LOTS, {"clipping": {"kind": "noised-mean-norm", "threshold": None}}
    ),
    "query examples": lambda: served({"method": "dp-maml-sample"}),
    "correlated": lambda: served(test_correlated.RUN, canaries=1000),
    "secure": lambda: served(test_secure_sum.RUN, MORE_CAME, FEW, canaries=300),
    "examples": lambda: own(one_run_of_examples, REPTILE),
    "updates": lambda: own(one_run_of_updates, {"method": "local-reptile"}),
}


def test_right_code_is_another_mechanism_no_oftener_than_is_said():
    """Five seeds of each: chances are uniform, or above that (Kolmogorov and Smirnov,
    false alarm 1e-3 each), and none is below 1e-4.
    """
    little, such = [], []
    for made in RIGHT.values():
        of, experiment_of = made()
        family = None
        for seed in range(5):
            found, rng = experiment_of(seed), np.random.default_rng(seed)
            family = family or of(found.releases)
            test = RankTest(family, len(found.coins), confidence=0.95, generator=rng)
            ideal = [found.ideal(rng) for _ in range(IDEALS)]
            shown = [
                test.statistic(found.coins[np.argsort(-scores)])
                for scores in (found.scores, *ideal)
            ]
            little.append(test.chance_of_as_little(shown[0], shown[1:]))
            such.append(chance_of_such(found.scores, found.coins, ideal))
    assert stats.kstest(little, "uniform").pvalue > 1e-3
    assert stats.kstest(such, "uniform", alternative="greater").pvalue > 1e-3
    assert min(little + such) > 1e-4


def one_sample(monkeypatch):
    """One Poisson sample of a client's examples is read by all of its steps."""
    honest = gbml.poisson_batches
    monkeypatch.setattr(
        gbml,
        "poisson_batches",
        lambda rng, steps, count: [honest(rng, steps, count)[0]] * steps,
    )


def one_lot(monkeypatch):
    """A client's lot is drawn once a round, for all steps."""
    honest = RecordLots.lot
    monkeypatch.setattr(
        RecordLots,
        "lot",
        lambda self, index, step, client: honest(self, index, 0, client),
    )


def one_cohort(monkeypatch):
    """The first round's cohort comes in all rounds."""
    honest = participation.Poisson.sample_cohort
    monkeypatch.setattr(
        participation.Poisson, "sample_cohort", lambda self, index: honest(self, 0)
    )


def twice_the_noise(monkeypatch):
    class Loud(PrivateSum):
        def _noised(self, total, standard):
            noised = super()._noised(total, standard)
            return 2 * noised - total

    monkeypatch.setattr(mechanism, "PrivateSum", Loud)


WRONG = {
    "one sample": (one_sample, [REPTILE]),
    "one lot": (one_lot, [LOTS, STEPS]),
    "one cohort": (one_cohort, [POISSON]),
    "twice the noise": (twice_the_noise, [{}]),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_mechanism_than_the_ledgers_is_told(monkeypatch, name):
    """What has fewer releases of its own, or more noise, shows less: said, and not
    taken for a weak attack.
    """
    fault, overlays = WRONG[name]
    config = make_config(*overlays)
    if config.own_delta:
        releases = one_run_of_examples(config, seed=99, canaries=16).releases
    else:
        releases = experiment(
            config, seed=99, steps=getattr(config.client_update, "inner_steps", 1)
        ).releases
    right = audit(config, releases)
    assert not right["another_mechanism"] and right["status"].startswith(
        "not above what is proven"
    )
    fault(monkeypatch)
    wrong = audit(config, releases)
    assert (
        wrong["another_mechanism"]
        and wrong["epsilon"] < right["epsilon"] <= wrong["epsilon_proven"]
    )
    assert wrong["status"].startswith(
        "ANOTHER MECHANISM ran than the ledger's, of which the best attacker shows "
    )
