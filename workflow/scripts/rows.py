"""Run a library at its tutorials' settings and write down its rows: rows.py LIBRARY.py
FILE.json.

For a Python that has the library, numpy, scipy and dpsum. A library's file says its
PACKAGE in the package index and makes `runs(folder)`, each what `row` takes.

Data and models are small stand-ins, which no epsilon depends on; samplers, thresholds,
noise, rounds and accountants are those of the tutorial or example that a row names. The
runs draw from the operating system or from the library's own generators, so that
thresholds which follow the data, and what the audits show, differ from run to run.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

CALLS = 200
"""Calls of each attack: an audit of a minute."""


def row(
    watched: Any,
    *,
    delta: float,
    audit: bool = True,
    profile: str = "proven",
    claimed: float | None = None,
    **said: str,
) -> dict[str, Any]:
    """A row of the table.

    Args:
        watched: the run, with `account` and `audit`.
        delta: of all epsilons.
        audit: whether the run's release is attacked.
        profile: of the account: `proven`, as a rule.
        claimed: what the library says, where its accountant is not in the account.
        said: `what` ran, the `source` of its settings, `why` the numbers differ or not,
            and a `quote` of the library's.

    Returns:
        These texts, delta, `claimed` and `audited` (None: there is none), `proven` (the
        upper end; None: nothing finite), and whether the claim is `right`, that is at
        least what is proven.
    """
    account = watched.account(delta)
    if "claimed" in account.profiles:
        claimed = account.profiles["claimed"].epsilon_high
    proven = account.profiles[profile].epsilon_high
    return {
        **{key: said[key] for key in ("what", "source")},
        "claimed": claimed,
        "proven": proven if math.isfinite(proven) else None,
        "audited": watched.audit(delta, calls=CALLS).epsilon if audit else None,
        "delta": delta,
        "right": claimed is not None and claimed >= proven - 1e-2,
        "why": said["why"],
        "quote": said.get("quote", ""),
    }


def main(source: Path, told: Path) -> None:
    """Make all rows of a library, in this process."""
    library = runpy.run_path(str(source))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # libraries leave files
        for run in library["runs"](Path(folder)):
            rows.append(row(**run))
            print(
                "{what}: claimed {claimed}, proven {proven}, audited {audited}".format(
                    **rows[-1]
                ),
                flush=True,
            )
    package = library["PACKAGE"]
    text = {
        "package": package,
        "version": importlib.metadata.version(package),
        "rows": rows,
    }
    told.write_text(
        json.dumps(text, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(*(Path(given).resolve() for given in sys.argv[1:]))
