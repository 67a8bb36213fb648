"""Runs to audit: the default configuration at sizes at which a run takes a fraction of a second."""

from pathlib import Path

import yaml

from dpfedbench.audit.canaries import audit_seed, one_run
from dpfedbench.config import RunConfig, merge, typed

DEFAULT = typed(yaml.safe_load((Path(__file__).parents[2] / "config" / "config.yaml").read_text(encoding="utf-8")))

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
    "model": {"name": "cnn"},
    "participation": {"kind": "poisson-lots", "cohort": 20, "rounds": 10},
    "client_update": {"kind": "local-steps", "inner_steps": 1, "optimizer": "adam"},
    "clipping": {"rule": "constant", "threshold": 1.0},
    "server": {"optimizer": "average", "rate": 1.0},
    "budget": {"delta": 1e-5},
}
RECORDS = 200


def make_config(*overlays):
    return RunConfig.from_dict(merge(DEFAULT["run"], SMALL, *overlays))


def experiment(config, *, canaries=400, seed=0, **values):
    """One run with canaries, under the audit's own seed number `seed`."""
    return one_run(
        config, seed=audit_seed(config, seed), canaries=canaries, rounds=config.participation.rounds,
        threshold=config.clipping.threshold or 1.0, records=RECORDS if config.by_record else 0, **values,
    )  # fmt: skip
