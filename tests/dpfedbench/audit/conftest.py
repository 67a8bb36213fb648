"""Runs to audit: the default configuration, small enough to take part of a second."""

from pathlib import Path

import pytest
import torch
import yaml

from dpfedbench.audit.canaries import audit_seed, one_run
from dpfedbench.audit.report import bounds_of, family_of
from dpfedbench.config.merge import merge
from dpsum import mechanism, noise
from tests.dpfedbench.training import conftest as small

DEFAULT = yaml.safe_load(
    (Path(__file__).parents[3] / "config" / "config.yaml").read_text(encoding="utf-8")
)

SMALL: dict = {
    "method": "dp-agr",
    "seed": 0,
    "dataset": "glyphs",
    "clients": {"count": 400},
    "participation": {"cohort": 40, "rounds": 10},
    "clipping": {"window": 3},
}
LOTS = {
    "method": "adap-dp-fl",
    "task": {"ways": 10, "shots": 0},
    "clients": {"count": 2, "partition": "fragments", "fragments": 8},
    "model": {"kind": "cnn"},
    "participation": {"kind": "poisson-lots", "cohort": 20, "rounds": 10},
    "client_update": {"kind": "local-steps", "inner_steps": 1, "optimizer": "adam"},
    "clipping": {"kind": "constant", "threshold": 1.0},
    "server": {"kind": "average"},
    "budget": {"delta": 1e-5},
}
RECORDS = 200


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread: a small sum takes less time than waiting for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_config(*overlays):
    return small.make_config(*overlays, general=merge(DEFAULT["run"], SMALL))


def audited_sum(config):
    """Return the server's private sum, or that of clients that hold records."""
    return next(
        sum_ for sum_ in config.sums() if sum_.private and sum_.within_task is None
    )


def experiment(config, *, canaries=400, seed=0, **values):
    """Run once with canaries, under the audit's seed number `seed`."""
    records = RECORDS if config.client_data == "records" else 0
    return one_run(
        config,
        audited_sum(config),
        seed=audit_seed(config, seed),
        canaries=canaries,
        rounds=config.participation.rounds,
        threshold=config.clipping.threshold or 1.0,
        records=records,
        **values,
    )


def bounds(result, family=None, *, delta=1e-6, seed=0):
    """Return the lower bounds at 95 % of an experiment, the headline first."""
    family = family or family_of(result.releases)
    return bounds_of(result, family, delta=delta, confidence=0.95, seed=seed)


def headline(result, family=None, *, delta=1e-6):
    """Return the epsilon of the first lower bound."""
    return bounds(result, family, delta=delta)[0].epsilon


def audit_mutant(monkeypatch, mutant, config, name="PrivateSum", **options):
    """Return the bound of a run with a mutant as private sum, and the proven epsilon."""
    module = noise if name == "PrivateSum" else mechanism
    monkeypatch.setattr(module, name, mutant)
    result = experiment(config, **options)
    family = family_of(result.releases)
    return headline(result, family), family.epsilon(1.0, 1e-6)
