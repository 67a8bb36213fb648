"""Run a library at its tutorials' settings and write its rows.

    python rows.py LIBRARY.py FILE.json

It runs in a Python that has the library, numpy, scipy and dpsum. LIBRARY.py names its
`PACKAGE` in the package index and defines `runs(folder)`, which yields the arguments of
`make_row` for each run.

Data and models are small stand-ins, on which no epsilon depends. Samplers, thresholds,
noise, rounds and accountants are those of the tutorial or example that a row names. The
runs draw random numbers from the operating system or from the library's own generators.
So thresholds that follow the data, and the audits, differ from run to run.
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
"""Calls of the mechanism in each attack: an audit takes about a minute."""


def make_row(
    watched: Any,
    *,
    delta: float,
    what: str,
    source: str,
    why: str,
    quote: str = "",
    audit: bool = True,
    profile: str = "proven",
    claimed: float | None = None,
) -> dict[str, Any]:
    """Return a row of the table.

    Args:
        watched: the watched run, with the methods `account` and `audit`.
        delta: of all epsilons.
        what: description of the run.
        source: where its settings come from.
        why: why claimed and proven epsilon differ, or do not.
        quote: words of the library about it.
        audit: whether the run's release is attacked.
        profile: profile of the account that gives the proven epsilon.
        claimed: the library's epsilon, where the account does not have it.

    Returns:
        The texts, delta, `claimed` and `audited` (None: there is none), `proven` (the
        upper end; None: nothing finite), the adjacency of each epsilon, and `right`:
        whether the claimed epsilon is at least the proven one, where the number of
        units is public.
    """
    account = watched.account(delta, units_public=True)
    claimed_adjacency = watched.claimed_adjacency
    if "claimed" in account.profiles:
        claimed = account.profiles["claimed"].epsilon_high
        claimed_adjacency = account.profiles["claimed"].adjacency
    proven = account.profiles[profile].epsilon_high
    return {
        "what": what,
        "source": source,
        "claimed": claimed,
        "claimed_adjacency": "" if claimed is None else claimed_adjacency,
        "proven": proven if math.isfinite(proven) else None,
        "adjacency": account.profiles[profile].adjacency,
        "audited": watched.audit(delta, calls=CALLS).epsilon if audit else None,
        "delta": delta,
        "right": claimed is not None and claimed >= proven - 1e-2,
        "why": why,
        "quote": quote,
    }


def main(source: Path, path: Path) -> None:
    """Write all rows of a library, from runs in this process."""
    library = runpy.run_path(str(source))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # libraries leave files
        for run in library["runs"](Path(folder)):
            row = make_row(**run)
            rows.append(row)
            print(
                f"{row['what']}: claimed {row['claimed']}, proven {row['proven']},"
                f" audited {row['audited']}",
                flush=True,
            )
    package = library["PACKAGE"]
    record = {
        "package": package,
        "version": importlib.metadata.version(package),
        "rows": rows,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
