"""Runs to audit: the default configuration, small enough to take part of a second."""

from dpfedbench.audit.canaries import audit_seed, one_run
from dpfedbench.audit.report import bounds_of, family_of
from dpfedbench.config.merge import merge
from dpsum.private_sum import PrivateSum
from tests.dpfedbench.training import conftest as small
from tests.shipped import ROOT, parsed

SMALL = {
    "method": "dp-agr",
    "seed": 0,
    "dataset": "glyphs",
    "clients": {"count": 400},
    "participation": {"cohort": 40, "rounds": 10},
    "clipping": {"window": 3},
}
DEFAULT = merge(parsed(ROOT / "config" / "config.yaml")["small"]["all"], SMALL)
LOTS = {
    "method": "adap-dp-fl",
    "task": {"ways": 10, "shots": 0},
    "clients": {"count": 2, "partition": "fragments", "fragments": 8},
    "model": {"kind": "cnn"},
    "participation": {"kind": "poisson-lots", "lot": 20, "rounds": 10},
    "client_update": {"kind": "local-steps", "inner_steps": 1, "optimizer": "adam"},
    "clipping": {"kind": "constant", "threshold": 1.0},
    "server": {"kind": "average"},
    "budget": {"delta": 1e-5},
}
RECORDS = 200


def make_config(*overlays):
    return small.make_config(*overlays, general=DEFAULT)


def experiment(config, audited=None, *, canaries=400, seed=0, **values):
    """Run once with canaries; the default sum is the server's, or that of records."""
    if audited is None:
        audited, *_ = (sum_ for sum_ in config.private_sums if not sum_.within_task)
    options = {
        "rounds": config.participation.rounds,
        "threshold": audited.clipping.threshold or 1.0,
        "records": RECORDS if config.client_data == "records" else 0,
    }
    options |= {"seed": audit_seed(config, seed), "canaries": canaries}
    return one_run(config, audited, **options | values)


def bounds(result, family=None, *, delta=1e-6, seed=0):
    """Return the lower bounds at 95 % of an experiment, the headline first."""
    family = family or family_of(result.releases)
    return bounds_of(result, family, delta=delta, confidence=0.95, seed=seed)


def headline(result, family=None, *, delta=1e-6):
    """Return the epsilon of the first lower bound."""
    return bounds(result, family, delta=delta)[0].epsilon


def bound_and_proven(result):
    """Return the epsilon of the first lower bound, and the proven epsilon."""
    family = family_of(result.releases)
    return headline(result, family), family.epsilon(1.0, 1e-6)


def scaled_noise(factor, noised=PrivateSum._noised):
    """Return a member `_noised` that multiplies the noise by a factor."""
    return lambda self, total, standard: noised(self, total, factor * standard)


def noise_of_squared_threshold(self, total, standard):
    """Add noise of deviation z C^2: too little below C = 1, too much above."""
    return total + self.noise_multiplier * self.threshold**2 * standard
