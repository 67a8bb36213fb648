"""Audits of DP-FNAS: each half's sum as its observers see it, and mutants.

The paper's released code clips the batch's gradient, adds noise of sigma C^2 and leaves
parts without noise.
"""

import pytest

from dpfedbench.audit.canaries import audit_seed, one_run
from dpfedbench.audit.report import family_of
from dpsum import noise
from dpsum.accounting.account import others, seen_by
from dpsum.private_sum import PrivateSum

from .conftest import LOTS, headline, make_config
from .test_mutants import SquaredThreshold

SEARCH = {
    **LOTS,
    "method": "dp-fnas",
    "model": {"kind": "darts-search"},
    "client_update": {"kind": "search-steps"},
    "clients": {"count": 3, "fragments": 9},
    "participation": {"kind": "poisson-lots", "cohort": 80, "rounds": 20},
    "clipping": {"threshold": 0.1},
    "noise": {"multiplier": 4.0},
    "architecture_clipping": {"threshold": 0.01},
    "architecture_noise": {"multiplier": 4.0},
}
HALF = 400
WEIGHTS = 0
ARCHITECTURE = 1
OTHER_NOISES = {"server": 0, "another client": 2, "everyone": 3}
"""Noises of other parties that an observer does not know."""


class PartWithoutNoise(PrivateSum):
    """Sum with noise on the first half of its coordinates alone."""

    def _noised(self, total, standard):
        noise = self.noise_std * standard
        noise[len(noise) // 2 :] = 0
        return total + noise


def audit_sum(monkeypatch, mutant, index, observer="server", **options):
    """Return the lower bound and the proven epsilon of a sum, for an observer."""
    monkeypatch.setattr(noise, "PrivateSum", mutant)
    run = make_config(SEARCH)
    sum_ = run.client_sums[index]
    result = one_run(
        run,
        sum_,
        seed=audit_seed(run, 0),
        canaries=300,
        rounds=20,
        threshold=sum_.clipping.threshold,
        records=HALF,
        added=OTHER_NOISES[observer],
        **options,
    )
    releases = result.releases
    assert {(event.name, event.part) for event in releases} == {(sum_.name, sum_.part)}
    if observer != "server":
        releases = [
            seen_by(event, others([event])[observer], observer) for event in releases
        ]
    family = family_of(releases)
    return headline(result, family), family.epsilon(1.0, 1e-6)


@pytest.mark.parametrize("observer", OTHER_NOISES)
@pytest.mark.parametrize("index", [WEIGHTS, ARCHITECTURE])
def test_audit_of_search_sums_is_below_what_is_proven(monkeypatch, index, observer):
    """A bound above it has a chance of at most 5 % each; the seeds are fixed."""
    bound, proven = audit_sum(monkeypatch, PrivateSum, index, observer)
    assert bound < proven


def test_observer_of_the_sum_over_parties_learns_less(monkeypatch):
    _, for_server = audit_sum(monkeypatch, PrivateSum, WEIGHTS)
    _, for_everyone = audit_sum(monkeypatch, PrivateSum, WEIGHTS, "everyone")
    assert for_server > for_everyone


@pytest.mark.parametrize("observer", ["server", "everyone"])
@pytest.mark.parametrize("index", [WEIGHTS, ARCHITECTURE])
@pytest.mark.parametrize("mutant", [SquaredThreshold, PartWithoutNoise])
def test_audit_of_search_sums_catches_a_mutant(monkeypatch, mutant, index, observer):
    bound, proven = audit_sum(monkeypatch, mutant, index, observer)
    assert bound > proven


def test_audit_of_a_search_sum_without_canaries_is_zero(monkeypatch):
    """The sum of one half has no canaries of the other half."""
    bound, _ = audit_sum(monkeypatch, PrivateSum, ARCHITECTURE, inserted=False)
    assert bound == 0
