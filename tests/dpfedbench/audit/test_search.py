"""Audits of DP-FNAS: of each half's sum, as the server and other parties see it, and of
mechanisms that are wrong.

The released code of the paper clips the batch's gradient, adds noise of sigma C^2 and
leaves parts without noise.
"""

import pytest

from dpfedbench.audit.canaries import audit_seed, one_run
from dpfedbench.audit.report import bounds_of, family_of
from dpsum import mechanism
from dpsum.accounting.account import others, seen_by
from dpsum.private_sum import PrivateSum

from .conftest import LOTS, make_config
from .test_mutants import SquaredThreshold

SEARCH = {
    **LOTS,
    "method": "dp-fnas",
    "model": {"kind": "darts-search"},
    "client_update": {"kind": "search-steps"},
    "participation": {"kind": "poisson-lots", "cohort": 80, "rounds": 20},
    "clipping": {"threshold": 0.1},
    "noise": {"multiplier": 4.0},
    "architecture_clipping": {"threshold": 0.01},
    "architecture_noise": {"multiplier": 4.0},
}
HALF = 400


class PartWithoutNoise(PrivateSum):
    """Noise on the first coordinates alone, as where the 1x1 convolutions are left
    out.
    """

    def _noised(self, total, standard):
        noise = self.noise_std * standard
        noise[len(noise) // 2 :] = 0
        return total + noise


def audited(monkeypatch, mutant, place, *, seen="", seed=0, **values):
    """(headline, what is proven) of one of the two sums, as the server or somebody else
    sees it.
    """
    monkeypatch.setattr(mechanism, "PrivateSum", mutant)
    run = make_config(SEARCH, {"clients": {"count": 3, "fragments": 9}})
    sum_ = run.client_sums[place]
    found = one_run(
        run,
        sum_,
        seed=audit_seed(run, seed),
        canaries=300,
        rounds=20,
        threshold=sum_.clipping.threshold,
        records=HALF,
        added={"": 0, "another client": 2, "everyone": 3}[seen],
        **values,
    )
    assert {event.name for event in found.releases} == {sum_.name} and {
        e.part for e in found.releases
    } == {sum_.part}
    releases = (
        [seen_by(e, others([e])[seen], seen) for e in found.releases]
        if seen
        else found.releases
    )
    family = family_of(releases)
    (headline, *_) = bounds_of(found, family, delta=1e-6, confidence=0.95, seed=0)
    return headline.epsilon, family.epsilon(1.0, 1e-6)


@pytest.mark.parametrize("seen", ["", "another client", "everyone"])
@pytest.mark.parametrize("place", [0, 1])
def test_honest_sums_are_within_what_holds(monkeypatch, place, seen):
    """A bound above it has a chance of at most 5 % each; the seeds are fixed."""
    found, holds = audited(monkeypatch, PrivateSum, place, seen=seen)
    assert found < holds


def test_who_sees_the_sum_of_all_sees_less(monkeypatch):
    assert (
        audited(monkeypatch, PrivateSum, 0)[1]
        > audited(monkeypatch, PrivateSum, 0, seen="everyone")[1]
    )


@pytest.mark.parametrize("seen", ["", "everyone"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("mutant", [SquaredThreshold, PartWithoutNoise])
def test_the_audit_catches(monkeypatch, mutant, place, seen):
    found, holds = audited(monkeypatch, mutant, place, seen=seen)
    assert found > holds


def test_a_leak_of_the_architectures_sum_is_not_told_from_the_weights_one(monkeypatch):
    """The canaries of one half are in no sum of the other: with none inserted there is
    nothing to tell.
    """
    found, _ = audited(monkeypatch, PrivateSum, 1, inserted=False)
    assert found == 0
