"""The table of privacy, and its figure: three epsilons beside every private number.

For each private configuration: epsilon as the paper prints it, as its accounting gives it for what was run, as it
holds, and an audited lower bound. `docs/privacy.md` says what each means.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.privacy.ledger import check_same_mechanism, read_ledger
from dpfedbench.reporting.figures import COLOURS, DPI
from dpfedbench.reporting.results import (
    CellResult,
    number,
    parse_published,
    read_cell,
    read_published,
    worst_epsilon,
)

PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed epsilons stand; x is the noise multiplier."""

COLUMNS = [
    "paper",
    "method",
    "variant",
    "role",
    "dataset",
    "task",
    "unit",
    "adjacency",
    "observer",
    "delta",
    "noise_multiplier",
    "epsilon_printed",
    "epsilon_claimed",
    "claimed_status",
    "epsilon_holds_low",
    "epsilon_holds_high",
    "holds_status",
    "epsilon_audited",
    "audit",
    "epsilon_image_level",
    "accuracy",
    "ci_low",
    "ci_high",
    "seeds",
    "reason",
    "runs",
]

_CLAIMED, _HOLDS, _AUDITED = COLOURS[0], COLOURS[1], COLOURS[2]


def read(entries: Sequence[Mapping[str, Any]], results: str | Path, published: str | Path) -> pd.DataFrame:
    """One row for each private configuration and each unit that it protects, with the columns of `COLUMNS`.

    No cell is empty.
    Of several seeds the worst account counts; the audit is that of the first seed, or of another configuration with the
    same mechanism, which `reason` then names. "not printed" stands where the paper gives no epsilon for the noise
    multiplier; an infinite epsilon and an image-level account that there is none of have their reason in `reason`.

    Args:
        entries: `Plan.private`.
        results: the results folder.
        published: the published numbers.

    Raises:
        BenchError: a file of a run is missing or damaged, or the mechanism of its ledger is not the one audited.
    """
    rows = [row for entry in entries for row in _rows(entry, Path(results), published)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(entry: Mapping[str, Any], results: Path, published: str | Path) -> list[dict[str, Any]]:
    """A row for each unit that a configuration protects: most protect one; two-fold privacy has two."""
    cell = read_cell(results, entry["folders"])
    runs = [results / "runs" / folder for folder in entry["folders"]]
    accounts = [read_json(run / "privacy.json") for run in runs]
    audit = read_json(results / "runs" / entry["audited"] / "audit.json")
    if entry["audited"] != entry["folders"][0]:
        own, other = (read_ledger(run / "ledger.jsonl") for run in (runs[0], results / "runs" / entry["audited"]))
        check_same_mechanism(
            own, other, whose=f"the audited {entry['audited']}", mend=f"delete {runs[0]} and run again"
        )
        audit = _of_another(audit, entry["audited"])
    rows = []
    for place, first in enumerate([accounts[0], *accounts[0].get("also", [])]):
        whole = [[account, *account.get("also", [])][place] for account in accounts]
        fits = [part for part in [audit, *audit.get("also", [])] if _whose(part) == _whose(first["profiles"]["holds"])]
        if not fits:
            raise BenchError(f"the audit of {runs[0].parent} is of other releases: delete its audit.json and run again")
        rows.append(_row(entry, cell, runs[0], whole, fits[0], published))
    return rows


def _of_another(audit: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """An audit that stands for another configuration too, with that said as its reason."""
    told = [*filter(None, [audit.get("reason")]), f"made for {Path(folder).parent}, whose mechanism is the same"]
    parts = {"also": [_of_another(part, folder) for part in audit["also"]]} if "also" in audit else {}
    return {**audit, "reason": ", ".join(told), **parts}


def _whose(found: Mapping[str, Any]) -> tuple[Any, Any]:
    return found["unit"], found["observer"]


def _row(
    entry: Mapping[str, Any],
    cell: CellResult,
    run: Path,
    accounts: Sequence[Mapping[str, Any]],
    audit: Mapping[str, Any],
    published: str | Path,
) -> dict[str, Any]:
    try:
        claimed, held = (worst_epsilon(accounts, profile) for profile in ("as_claimed", "holds"))
        holds = accounts[0]["profiles"]["holds"]
        image = [account["profiles"].get("image_level") for account in accounts]
        row = {
            "paper": entry["paper"],
            "method": entry["method"],
            "variant": entry["variant"],
            "role": "repaired" if _repairs(entry) else "published",
            "dataset": entry["dataset"],
            "task": entry["task"],
            "unit": holds["unit"],
            "adjacency": holds["adjacency"],
            "observer": holds["observer"],
            "delta": holds["delta"],
            "noise_multiplier": min(account["noise_multiplier"] for account in accounts),
            "epsilon_printed": _printed(entry, holds["unit"], published),
            "epsilon_claimed": claimed.high,
            "claimed_status": claimed.status,
            "epsilon_holds_low": held.low,
            "epsilon_holds_high": held.high,
            "holds_status": held.status,
            "epsilon_image_level": _image_level(image),
            "epsilon_audited": number(audit["epsilon"]),
            "audit": f"{audit['method']}, {100 * audit['confidence']:g} % confidence",
            "accuracy": cell.accuracy.mean,
            "ci_low": cell.accuracy.low,
            "ci_high": cell.accuracy.high,
            "seeds": cell.seeds,
            "reason": _reason(claimed.explanation, held.explanation, image, audit),
            "runs": _runs(entry),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"an account or audit of {run.parent} lacks {error}: delete it and run again") from error
    return row


def _repairs(entry: Mapping[str, Any]) -> bool:
    return any(place["repairs"] for place in entry["tables"])


def _printed(entry: Mapping[str, Any], unit: str, published: str | Path) -> float | str:
    """The paper's epsilon at this noise multiplier; a number without a multiplier is for all of them.

    Where a method protects two units, the row's variant names the one it is for.
    """
    for row in read_published(published, entry["paper"], PRINTED_ITEM):
        printed = parse_published(row)
        fits = row["method"] == entry["method"] and row["variant"] in ("", unit)
        if fits and not _repairs(entry) and printed.x in (None, entry["multiplier"]):
            return printed.value
    return "not printed"


def _image_level(found: Sequence[Mapping[str, Any] | None]) -> float | str:
    known = [one for one in found if one is not None and one.get("epsilon_high") is not None]
    return max((number(one["epsilon_high"]) for one in known), default="none")


def _reason(claimed: str, holds: str, image: Sequence[Mapping[str, Any] | None], audit: Mapping[str, Any]) -> str:
    said = [f"claimed: {claimed}", f"holds: {holds}"]
    said += [f"image level: {one['explanation']}" for one in image[:1] if one is not None and one.get("explanation")]
    if audit.get("reason"):
        said.append(f"audit: {audit['reason']}")
    return "; ".join(said)


def to_csv(table: pd.DataFrame) -> str:
    """CSV text: six significant digits, "inf" for no bound."""
    return str(table.to_csv(index=False, float_format="%.6g", lineterminator="\n", na_rep="none"))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "∞" if math.isinf(value) else "–" if math.isnan(value) else f"{value:.3g}"


def _range(low: float, high: float) -> str:
    return _text(high) if f"{low:.3g}" == f"{high:.3g}" else f"{_text(low)} to {_text(high)}"


def to_markdown(table: pd.DataFrame, command: str) -> str:
    """The table for people: those that a table of a paper shows come with all columns that fit a page."""
    headings = (
        "paper", "method", "data", "unit", "δ", "z", "ε printed", "ε recomputed as claimed", "ε that holds",
        "ε audited, at least", "accuracy, %",
    )  # fmt: skip
    lines = ["# Three ε beside every private number", "", f"| {' | '.join(headings)} |", f"|{' --- |' * len(headings)}"]
    for row in table.to_dict("records"):
        name = f"{row['method']}, {row['variant']}" + (" (repaired)" if row["role"] == "repaired" else "")
        fields = [
            row["paper"], name, f"{row['dataset']} {row['task']}", row["unit"], f"{row['delta']:g}",
            f"{row['noise_multiplier']:.3g}", _text(row["epsilon_printed"]),
            f"{_text(row['epsilon_claimed'])} ({row['claimed_status']})",
            f"{_range(row['epsilon_holds_low'], row['epsilon_holds_high'])} ({row['holds_status']})",
            _text(row["epsilon_audited"]), f"{row['accuracy']:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(fields)} |")
    lines += [
        "",
        "- Printed: the paper's own number, at the paper's scale. Recomputed as claimed: the paper's accounting of "
        "what was run here. Holds: what the sampler and the observer justify. Audited: a lower bound from canaries, "
        "with 95 % confidence; a low one proves nothing. docs/privacy.md explains each.",
        "- The CSV has the observer, adjacency, the image-level account, the intervals of accuracy and, in `reason`, "
        "what each number rests on and why one is infinite.",
        f"- Made by `{command}`.",
        "",
    ]
    return "\n".join(lines)


def drawn(table: pd.DataFrame, entries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The numbers of the figure, which shows each table's first task."""
    columns = [
        "paper",
        "method",
        "variant",
        "role",
        "dataset",
        "task",
        "unit",
        "delta",
        "epsilon_claimed",
        "epsilon_holds_high",
    ]
    columns += ["epsilon_audited", "accuracy", "ci_low", "ci_high", "seeds"]
    shown = table.iloc[_first_tasks(table, entries)][columns]
    return shown.assign(number=range(1, len(shown) + 1))[["number", *columns]]


def _by_row(table: pd.DataFrame, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entry of each row; one that protects two units has two rows."""
    entry_of = {_runs(entry): entry for entry in entries}
    return [entry_of[runs] for runs in table["runs"]]


def _runs(entry: Mapping[str, Any]) -> str:
    return str(Path("results", "runs", entry["folders"][0]).parent)


def draw(table: pd.DataFrame, entries: Sequence[Mapping[str, Any]]) -> Figure:
    """Claimed, holding and audited epsilon of each variant; and accuracy over the epsilon that holds, with the repairs.

    Args:
        table: what `read` gave.
        entries: what it gave it of; those of a table's first task are drawn, with a number for each row.
    """
    of_rows = _by_row(table, entries)
    keep = _first_tasks(table, entries)
    rows = [dict(row) for row in table.iloc[keep].to_dict("records")]
    named = [of_rows[index] for index in keep]
    groups = list(dict.fromkeys(
        _group(row, entry, place)
        for row, entry in zip(rows, named, strict=True) for place in entry["tables"] if place["repairs"]
    ))  # fmt: skip
    figure = Figure(figsize=(13, max(4.8, 1.7 + 0.3 * len(rows), 2.9 * len(groups))), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    grid = figure.add_gridspec(max(1, len(groups)), 2, width_ratios=(1.15, 1))
    _draw_epsilons(figure.add_subplot(grid[:, 0]), rows)
    for place, group in enumerate(groups):
        _draw_accuracy(figure.add_subplot(grid[place, 1]), rows, named, group)
    return figure


def _first_tasks(table: pd.DataFrame, entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """Places of the rows that belong to the first task of a paper's table, data set and all.

    A table's further tasks have the same mechanisms and tell the same: with all of them the figure is too long to read.
    """
    first: dict[tuple[str, str], tuple[str, str]] = {}  # of a table, the data set and task
    shown = [
        (index, (entry["paper"], place["item"]), (dataset, entry["task"]))
        for index, (entry, dataset) in enumerate(zip(_by_row(table, entries), table["dataset"], strict=True))
        for place in entry["tables"]
    ]
    for _, item, task in shown:
        first.setdefault(item, task)
    return list(dict.fromkeys(index for index, item, task in shown if first[item] == task))


def _group(row: Mapping[Any, Any], entry: Mapping[str, Any], place: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What is compared in one panel: paper, table, data set and task."""
    return entry["paper"], place["item"], row["dataset"], entry["task"]


def _draw_epsilons(axes: Axes, rows: Sequence[Mapping[Any, Any]]) -> None:
    """A line of three points for each variant; an infinite epsilon is an arrow at the edge."""
    columns = ("epsilon_claimed", "epsilon_holds_high", "epsilon_audited")
    given = np.array([[row[column] for column in columns] for row in rows], dtype=np.float64)
    positive = given[np.isfinite(given) & (given > 0)]
    low, high = (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10.0)
    edge = high * 1.25
    for place, row in enumerate(rows):
        claimed, holds, audited = (row[column] for column in columns)
        ends = [min(value, edge) for value in (claimed, holds) if not math.isnan(value)]
        if ends:
            axes.plot([min(ends), max(ends)], [place, place], color="#bbbbbb", linewidth=1.4, zorder=1)
        axes.plot(min(claimed, edge), place, "o", ms=8, mfc="none", mec=_CLAIMED, mew=1.6, zorder=3)
        if math.isinf(holds):
            axes.plot(edge, place, ">", ms=8, color=_HOLDS, zorder=3)
        else:
            axes.plot(holds, place, "s", ms=5.5, color=_HOLDS, zorder=2)
        if audited > 0:
            axes.plot(audited, place, "|", ms=11, mew=2.4, color=_AUDITED, zorder=4)
        else:
            axes.plot(low, place, "<", ms=5, mfc="none", mec=_AUDITED, zorder=4)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, edge * 1.15)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(rows)), [_label(place + 1, row) for place, row in enumerate(rows)], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="#e3e3e3", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    deltas = ", ".join(f"{value:g}" for value in sorted({row["delta"] for row in rows}))
    axes.set_xlabel(f"ε, log axis, each at its δ ({deltas})")
    axes.set_title(
        "ε as claimed, as it holds, as audited\n(first task of each table; the others are in privacy.csv)", fontsize=11
    )
    handles = [
        Line2D([], [], marker="o", ms=8, mfc="none", mec=_CLAIMED, mew=1.6, linestyle="none", label="as claimed"),
        Line2D([], [], marker="s", ms=5.5, color=_HOLDS, linestyle="none", label="holds (upper end)"),
        Line2D([], [], marker=">", ms=8, color=_HOLDS, linestyle="none", label="no finite ε holds"),
        Line2D([], [], marker="|", ms=11, mew=2.4, color=_AUDITED, linestyle="none", label="audited: at least"),
        Line2D([], [], marker="<", ms=5, mfc="none", mec=_AUDITED, linestyle="none", label="audited: 0"),
    ]
    axes.figure.legend(handles=handles, fontsize=9, ncols=5, loc="outside lower left", frameon=False)


def _label(number: int, row: Mapping[Any, Any]) -> str:
    variant = row["variant"] if row["variant"] not in ("", row["method"]) else "as published"
    unit = "" if row["unit"] == "client" else f", {row['unit']}"
    text = "\n".join(textwrap.wrap(f"{row['method']}: {variant}{unit}", 52))
    return f"{text}  [{row['dataset']}]{'  ✓' if row['role'] == 'repaired' else ''}  {number}"


def _draw_accuracy(
    axes: Axes,
    rows: Sequence[Mapping[Any, Any]],
    entries: Sequence[Mapping[str, Any]],
    group: tuple[str, str, str, str],
) -> None:
    """Accuracy over the epsilon that holds, repaired ones filled; arrows run from a published variant to its repair."""
    members = [
        (index, place) for index, entry in enumerate(entries) for place in entry["tables"]
        if _group(rows[index], entry, place) == group
    ]  # fmt: skip
    finite = [value for index, _ in members if math.isfinite(value := rows[index]["epsilon_holds_high"])]
    low, edge = (min(finite) / 1.5, max(finite) * 1.8) if finite else (0.1, 10.0)
    at = {
        place["series"]: (min(rows[index]["epsilon_holds_high"], edge), rows[index]["accuracy"])
        for index, place in members
    }
    for index, place in members:
        row, (x, y) = rows[index], at[place["series"]]
        repaired, infinite = bool(place["repairs"]), math.isinf(row["epsilon_holds_high"])
        colour = _AUDITED if repaired else _CLAIMED
        spread = None if math.isnan(row["ci_low"]) else [[y - row["ci_low"]], [row["ci_high"] - y]]
        axes.errorbar(
            x, y, yerr=spread, fmt=">" if infinite else "o", ms=7, mec=colour, mfc=colour if repaired else "white",
            ecolor=colour, elinewidth=1, capsize=2, zorder=3,
        )  # fmt: skip
        axes.annotate(str(index + 1), (x, y), xytext=(6, 4), textcoords="offset points", fontsize=9, color=colour)
        if place["repairs"] in at:  # what it repairs may be left out of the table
            axes.annotate(
                "", (x, y), at[place["repairs"]], zorder=2,
                arrowprops={"arrowstyle": "->", "color": "#888888", "shrinkA": 6, "shrinkB": 6, "linewidth": 0.9},
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(low, edge * 1.25)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else ""))
    axes.tick_params(axis="x", which="minor", labelsize=9)
    axes.margins(y=0.2)
    axes.grid(color="#e3e3e3", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    first = rows[members[0][0]]
    seeds = sorted({rows[index]["seeds"] for index, _ in members})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    axes.set_title(f"{group[0]}, {group[1]}: {group[2]} {group[3]}", fontsize=10)
    edge_text = "\nat the edge: no finite ε holds" if len(finite) < len(members) else ""
    axes.set_xlabel(
        f"ε that holds, δ = {first['delta']:g} (white: published, green: repaired){edge_text}", fontsize=8.5
    )
    axes.set_ylabel(f"accuracy, %\n({count} seed{'' if count == '1' else 's'}, 95 % intervals)", fontsize=8.5)
