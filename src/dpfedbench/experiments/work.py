"""Amount of work of a run, and its time by the rate of its kind of work.

Reading a plan imports neither torch nor numba, and nor does this module.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dpfedbench.config.kinds import is_section
from dpfedbench.config.part import plain
from dpfedbench.parts.budget import BudgetSettings, OwnSum
from dpfedbench.parts.server.server_step import ServerStep
from dpfedbench.parts.transforms.transform import Transform
from dpfedbench.run import Run
from dpsum.clipping import ClippingRule
from dpsum.noise import Noise
from dpsum.participation import Participation

_SMALL = (
    BudgetSettings,
    OwnSum,
    ClippingRule,
    Noise,
    Participation,
    ServerStep,
    Transform,
)
"""Sections that hardly affect the time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """Seconds of a kind of work.

    Attributes:
        seconds_per_unit: seconds of one client or record.
        validation: seconds of one validation task (for records: of all).
        test: seconds of one test.
        lot: records of a round; None: the round is counted in the cohort's clients.
        unit: unit of the work, "clients" or "records".
    """

    seconds_per_unit: float
    validation: float = 0.0
    test: float = 0.0
    lot: int | None = None
    unit: str = "clients"

    def estimate(self, run: Run, rounds: int) -> tuple[int, float]:
        """Return the clients or records of a run's training, and its seconds.

        Args:
            run: a run of this kind of work.
            rounds: number of rounds.
        """
        trained = rounds * (self.lot or run.participation.cohort)
        every = run.validation.every
        validated = (
            -(-rounds // every)
            * (run.validation.tasks if run.client_data == "tasks" else 1)
            if every
            else 0
        )
        tested = rounds // run.evaluation.every if run.evaluation.every else 0
        return (
            trained,
            trained * self.seconds_per_unit
            + validated * self.validation
            + tested * self.test,
        )


def kind_of(run: Run) -> str:
    """Return the kind of work of a run, as text.

    A client, or a record, of two runs of one kind takes the same time. Rates,
    thresholds and budgets are fractions and do not affect the amount of computation;
    sizes are whole numbers. Sampling, clipping, noise and server step take very little
    time compared with the client's computation.
    """
    tasks = run.client_data == "tasks"
    kind: dict[str, Any] = {
        "sums": [
            (sum_.name, sum_.unit, getattr(sum_.noise, "mechanism", "gaussian"))
            for sum_ in run.all_sums
        ],
        "data": [run.dataset, run.computes_within_records, run.pretrains],
    }
    for key in type(run).model_fields:
        value = run.model.without_references() if key == "model" else getattr(run, key)
        if is_section(type(value)) and not isinstance(value, _SMALL):
            kind[key] = _sizes(plain(value))
    if tasks:
        kind["clients"] = [run.clients.support_per_class, run.clients.query_per_class]
    kind["measured"] = [run.validation.every > 0, run.evaluation.every > 0]
    return json.dumps(
        kind
        | {"lot": None if tasks else [run.participation.cohort, run.validation.tasks]}
    )


def _sizes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _sizes(item)
            for key, item in value.items()
            if key not in ("seed", "every", "tasks")
        }
    if isinstance(value, list | tuple):
        return [_sizes(item) for item in value]
    return None if isinstance(value, float) else value


def kind_key(run: Run) -> str:
    """Return a short hash of the run's kind of work."""
    return hashlib.sha256(kind_of(run).encode()).hexdigest()[:10]


def rate_record(run: Run, rate: Rate) -> dict[str, Any]:
    """Return the row of cost_rates.csv for the kind of work of a run."""
    seconds = {
        "seconds_per_unit": rate.seconds_per_unit,
        "validation": rate.validation,
        "test": rate.test,
    }
    rounded = {name: float(f"{value:.3g}") for name, value in seconds.items()}
    return {
        "kind": kind_key(run),
        "method": run.method,
        **rounded,
        "lot": rate.lot,
    }
