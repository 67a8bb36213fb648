"""Runs to audit: the default configuration at sizes at which a run takes a fraction of
a second.
"""

from pathlib import Path

import pytest
import torch
import yaml

from dpfedbench.audit.canaries import audit_seed, one_run
from dpfedbench.papers import METHODS
from dpfedbench.settings.layers import merge
from tests.dpfedbench.federation import conftest as small

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
    """Sums of a few hundred numbers wait for a second thread ten times as long as they
    take, on a busy machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_config(*overlays):
    return small.make_config(
        *overlays, general=merge(list(METHODS.values()), DEFAULT["run"], SMALL)
    )


def audited_sum(config):
    """The server's private sum, or that of clients that hold records."""
    return next(
        each for each in config.sums() if each.private and each.within_task is None
    )


def experiment(config, *, canaries=400, seed=0, **values):
    """One run with canaries, under the audit's own seed number `seed`."""
    return one_run(
        config,
        audited_sum(config),
        seed=audit_seed(config, seed),
        canaries=canaries,
        rounds=config.participation.rounds,
        threshold=config.clipping.threshold or 1.0,
        records=RECORDS if config.client_data == "records" else 0,
        **values,
    )
