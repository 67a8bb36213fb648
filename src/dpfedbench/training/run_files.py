"""Files that a training writes into its run's folder."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.breaches import notices_of
from dpfedbench.files import atomic_path, write_json
from dpfedbench.models.kernels import processor, versions_of
from dpfedbench.models.members import save_members
from dpfedbench.results_format import FORMAT, HISTORY, VERSION
from dpfedbench.run import Run
from dpfedbench.training.federation import Federation, has_owners
from dpfedbench.training.history import Row
from dpsum.ledger import Ledger

UNTRAINED: Mapping[str, Any] = {
    "rounds_planned": 0,
    "rounds_run": 0,
    "stopped_by": "rounds",
    "clients_per_second": None,
    "milliseconds_per_client": None,
    "seconds": 0.0,
    "resumed": 0,
    "threads": 1,
    "shared_parameters": None,
    "noise_multiplier": None,
    "members": [],
}
"""Summary of a run of a method that does not train, such as `random`."""


def write_results(
    folder: Path,
    run: Run,
    federation: Federation,
    ledger: Ledger,
    *,
    models: Sequence[np.ndarray],
    summary: Mapping[str, Any],
    columns: Sequence[str] = (),
    rows: Sequence[Row] = (),
) -> None:
    """Write model.safetensors, history.csv, ledger.jsonl and, last, training.json.

    Args:
        folder: the run's folder.
        run: the run.
        federation: its model and data.
        ledger: its ledger.
        models: weights of each member of the model, float32 [d] each.
        summary: what training.json has of the training itself.
        columns: columns of the history besides those that every history has.
        rows: rows of the history. NaN and None are left empty.
    """
    save_members(folder / "model.safetensors", federation.net, models)
    with (
        atomic_path(folder / "history.csv") as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(
            file,
            [*HISTORY, *columns],
            restval="",
            extrasaction="ignore",
            lineterminator="\n",
        )
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    name: value
                    for name, value in row.items()
                    if value is not None and value == value
                }
            )
    with atomic_path(folder / "ledger.jsonl") as temporary:
        shutil.copyfile(ledger.path, temporary)
    write_json(
        folder / "training.json",
        {
            "format": FORMAT,
            "written_by": VERSION,
            "ledger": ledger.chain,
            **summary,
            "device": federation.gradients.device,
            "gradients": federation.gradients.name,
            "machine": processor(),
            "parameters": federation.net.dimension,
            "method_version": run.made_by,
            "versions": versions_of("torch", "numpy", "numba"),
            "notices": list(notices_of(run, has_owners=has_owners(federation.held))),
        },
    )
