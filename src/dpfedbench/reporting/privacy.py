"""The table of privacy, and its figure: three epsilons beside every private number.

For each private configuration: epsilon as the paper prints it, as its accounting gives it for what was run, as it
holds, and an audited lower bound. `docs/privacy.md` says what each means.
"""

from __future__ import annotations

import dataclasses
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

from dpfedbench.accounting.account import Account
from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.privacy.ledger import check_same_mechanism, read_ledger
from dpfedbench.reporting import values
from dpfedbench.reporting.described import Place, Private
from dpfedbench.reporting.figures import COLOURS, DPI, arrow, draw_point, plain, tidied
from dpfedbench.reporting.results import (
    CellResult,
    Epsilon,
    Published,
    read_cell,
    read_published,
    worst_epsilon,
)
from dpfedbench.reporting.values import Shown

TITLE = "Three ε beside every private number"
ANOTHER = "of another mechanism than the ledger's"
PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed epsilons stand; x is the noise multiplier."""

_CLAIMED, _HOLDS, _AUDITED = COLOURS[0], COLOURS[1], COLOURS[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A private configuration and one unit that it protects: most protect one; two-fold privacy has two.

    `printed` is None where the paper gives no epsilon for the noise multiplier, `image_level` where there is no account
    of images. `audit` says how `audited`, a lower bound, was found; `ideal` is what an ideal attacker would show with
    as many observations in half of all audits, None where the audit does not say; `audit_note` why the bound
    says nothing; `reason` what each number rests on.
    """

    entry: Private
    unit: str
    adjacency: str
    observer: str
    delta: float
    noise_multiplier: float
    printed: float | None
    claimed: Epsilon
    holds: Epsilon
    audited: float
    ideal: float | None
    audit: str
    image_level: float | None
    cell: CellResult
    reason: str
    audit_note: str = ""

    @property
    def role(self) -> str:
        """Whether the claim is the paper's or mended."""
        return "repaired" if self.entry.repaired else "published"

    @property
    def accuracy(self) -> float:
        """In percent, the mean over seeds."""
        return self.cell.accuracy.mean


def read(entries: Sequence[Private], results: str | Path, published: str | Path) -> list[Row]:
    """One row for each private configuration and each unit that it protects.

    Of several seeds the worst account counts; the audit is that of the first seed, or of another configuration with the
    same mechanism, which `reason` then names.

    Args:
        entries: `Plan.private`.
        results: the results folder.
        published: the published numbers.

    Raises:
        BenchError: a file of a run is missing or damaged, or the mechanism of its ledger is not the one audited.
    """
    printed = {entry.paper: read_published(published, entry.paper, PRINTED_ITEM) for entry in entries}
    return [row for entry in entries for row in _rows(entry, Path(results), printed[entry.paper])]


def _rows(entry: Private, results: Path, printed: Sequence[Published]) -> list[Row]:
    cell, rows, also = read_cell(results, entry.folders), list[Row](), ""
    folder, accounts = cell.runs[0].folder, [(run.account, *run.account.also) for run in cell.runs]
    audit = read_json(results / "runs" / entry.audited / "audit.json")
    if entry.audited != entry.folders[0]:
        own, other = (read_ledger(run / "ledger.jsonl") for run in (folder, results / "runs" / entry.audited))
        check_same_mechanism(own, other, whose=f"the audited {entry.audited}", mend=f"delete {folder} and run again")
        also = f"made for {Path(entry.audited).parent}, whose mechanism is the same"
    try:
        audits = {(part["unit"], part["observer"]): part for part in (*audit.get("also", ()), audit)}
        for of_unit in zip(*accounts, strict=True):
            holds = of_unit[0].profiles["holds"]
            found = audits.get((holds.unit, holds.observer))
            if found is None:
                raise BenchError(f"the audit of {folder.parent} is of other releases: delete its audit.json, run again")
            of_audit = ", ".join(filter(None, [found.get("reason"), also]))
            rows.append(_row(entry, cell, of_unit, found, of_audit, printed))
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"an account or audit of {folder.parent} lacks {error}: delete it and run again") from error
    return rows


def _row(
    entry: Private,
    cell: CellResult,
    accounts: Sequence[Account],
    audit: Mapping[str, Any],
    of_audit: str,
    printed: Sequence[Published],
) -> Row:
    """Of one unit: its accounts, one for each seed, and its audit."""
    claimed, held, image = (worst_epsilon(accounts, profile) for profile in ("as_claimed", "holds", "image_level"))
    holds = accounts[0].profiles["holds"]
    said = [f"claimed: {claimed.explanation}", f"holds: {held.explanation}"]
    said += [f"image level: {image.explanation}"] * ("image_level" in accounts[0].profiles)
    said += [f"audit: {of_audit}"] * bool(of_audit)
    return Row(
        entry=entry,
        unit=holds.unit,
        adjacency=holds.adjacency,
        observer=holds.observer,
        delta=holds.delta,
        noise_multiplier=min(account.noise_multiplier or math.inf for account in accounts),
        printed=_printed(entry, holds.unit, printed),
        claimed=claimed,
        holds=held,
        audited=float(audit["epsilon"]),
        ideal=audit.get("epsilon_ideal"),
        audit=f"{audit['method']}, {100 * audit['confidence']:g} % confidence",
        image_level=None if math.isnan(image.high) else image.high,
        cell=cell,
        reason="; ".join(said),
        audit_note=ANOTHER if audit.get("another_mechanism") else "",
    )


def _printed(entry: Private, unit: str, printed: Sequence[Published]) -> float | None:
    """The paper's epsilon at this noise multiplier; a number without a multiplier is for all of them.

    Where a method protects two units, the printed number's variant names the one it is for.
    """
    for number in printed:
        fits = number.method == entry.method and number.variant in ("", unit)
        if fits and not entry.repaired and number.x in (None, entry.multiplier):
            return number.value
    return None


def tidy(rows: Sequence[Row]) -> pd.DataFrame:
    """The table for programs; its CSV has no empty cell: "none" stands where there is nothing."""
    return pd.DataFrame(
        {
            "paper": row.entry.paper,
            "method": row.entry.method,
            "variant": row.entry.variant,
            "role": row.role,
            "dataset": row.entry.dataset,
            "task": row.entry.task,
            "unit": row.unit,
            "adjacency": row.adjacency,
            "observer": row.observer,
            "delta": row.delta,
            "noise_multiplier": row.noise_multiplier,
            "epsilon_printed": "not printed" if row.printed is None else row.printed,
            "epsilon_claimed": row.claimed.high,
            "claimed_status": row.claimed.status,
            "epsilon_holds_low": row.holds.low,
            "epsilon_holds_high": row.holds.high,
            "holds_status": row.holds.status,
            "epsilon_audited": row.audited,
            "epsilon_ideal": "none" if row.ideal is None else row.ideal,
            "audit": f"{row.audit}, {row.audit_note}" if row.audit_note else row.audit,
            "epsilon_image_level": "none" if row.image_level is None else row.image_level,
            "accuracy": row.accuracy,
            "ci_low": row.cell.accuracy.low,
            "ci_high": row.cell.accuracy.high,
            "seeds": row.cell.seeds,
            "reason": row.reason,
            "runs": f"results/runs/{row.entry.group}",
        }
        for row in rows
    )


PAGE = (
    "method", "dataset", "task", "accuracy", "epsilon_printed", "epsilon_claimed", "epsilon_holds", "epsilon_audited",
    "epsilon_ideal", "epsilon_image_level", "claimed_status", "holds_status", "paper", "role", "unit", "adjacency",
    "observer", "delta", "noise_multiplier", "audit", "ci", "seeds", "reason", "runs",
)  # fmt: skip
"""The columns of the page, in its order."""


def fields(rows: Sequence[Row]) -> list[dict[str, Shown]]:
    """The rows for the page, by the columns' headings: all that the CSV has."""
    found = []
    for row, record in zip(rows, tidy(rows).to_dict("records"), strict=True):
        texts = {
            str(name): values.words(value) if isinstance(value, str) else values.number(value, ".4g", nothing="none")
            for name, value in record.items()
        }
        texts["method"] = values.words(row.entry.title, row.entry.variant)
        texts["epsilon_holds"] = values.between(row.holds.low, row.holds.high, ".4g", nothing="none")
        texts["epsilon_audited"] = dataclasses.replace(texts["epsilon_audited"], note=row.audit_note)
        texts["ci"] = values.between(row.cell.accuracy.low, row.cell.accuracy.high, ".4g")
        words = {name: name.replace("_", " ").replace("epsilon", "ε").replace("delta", "δ") for name in PAGE}
        found.append({words[name]: texts[name] for name in PAGE})
    return found


NOTES = (
    "Printed: the paper's own number, at the paper's scale. Recomputed as claimed: the paper's accounting of "
    "what was run here. Holds: what the sampler and the observer justify. Audited: a lower bound from canaries, "
    "with 95 % confidence; a low one proves nothing. Ideal: what the best attacker would show with as many "
    "canaries, in half of all audits. docs/privacy.md explains each.",
    "The CSV has the observer, adjacency, the image-level account, the intervals of accuracy and, in `reason`, "
    "what each number rests on and why one is infinite.",
)


def to_markdown(rows: Sequence[Row], command: str) -> str:
    """The table for people: those that a table of a paper shows come with all columns that fit a page."""
    texts = [
        {
            "paper": row.entry.paper,
            "method": f"{row.entry.method}, {row.entry.variant}" + (" (repaired)" if row.entry.repaired else ""),
            "data": f"{row.entry.dataset} {row.entry.task}",
            "unit": row.unit,
            "δ": f"{row.delta:g}",
            "z": f"{row.noise_multiplier:.3g}",
            "ε printed": values.number(row.printed, nothing="not printed").text,
            "ε recomputed as claimed": f"{values.number(row.claimed.high).text} ({row.claimed.status})",
            "ε that holds": f"{values.between(row.holds.low, row.holds.high).text} ({row.holds.status})",
            "ε audited, at least": dataclasses.replace(values.number(row.audited), note=row.audit_note).line,
            "of an ideal attacker": values.number(row.ideal, nothing="none").text,
            "accuracy, %": f"{row.accuracy:.1f}",
        }
        for row in rows
    ]
    return values.document(TITLE, texts, NOTES, command)


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows that the figure draws: of each paper's table those of its first task, data set and all.

    A table's further tasks have the same mechanisms and tell the same: with all of them the figure is too long to read.
    Of a paper whose tables show nothing private, those of its figures.
    """
    tabled = {row.entry.paper for row in rows if row.entry.tables}
    first: dict[tuple[str, str], tuple[str, str]] = {}  # of a table, the data set and task
    kept = []
    for row in rows:
        # A table without a paper of its own stands for the figures of a paper that has no table.
        places = [(place.paper, place.item) for place in row.entry.tables]
        places = places or [(row.entry.paper, "")] * (row.entry.paper not in tabled)
        task = (row.entry.dataset, row.entry.task)
        if any([first.setdefault(place, task) == task for place in places]):
            kept.append(row)
    return kept


def drawn(rows: Sequence[Row]) -> pd.DataFrame:
    """The numbers of the figure."""
    columns = [
        "paper", "method", "variant", "role", "dataset", "task", "unit", "delta", "epsilon_claimed",
        "epsilon_holds_high", "epsilon_audited", "accuracy", "ci_low", "ci_high", "seeds",
    ]  # fmt: skip
    table = tidy(shown(rows))[columns]
    return table.assign(number=range(1, len(table) + 1))[["number", *columns]]


Group = tuple[str, str, str, str]
"""What is compared in one panel: paper, table, data set and task."""


def _group(row: Row, place: Place) -> Group:
    return place.paper, place.item, row.entry.dataset, row.entry.task


def draw(table: Sequence[Row]) -> Figure:
    """Claimed, holding and audited epsilon of each variant; and accuracy over the epsilon that holds, with the repairs.

    Args:
        table: what `read` gave; those that are `shown` are drawn, with a number for each.
    """
    rows = shown(table)
    groups = list(dict.fromkeys(_group(row, place) for row in rows for place in row.entry.tables if place.repairs))
    figure = Figure(figsize=(13, max(4.8, 1.7 + 0.3 * len(rows), 2.9 * len(groups))), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    grid = figure.add_gridspec(max(1, len(groups)), 2 if groups else 1, width_ratios=(1.15, 1)[: 1 + bool(groups)])
    _draw_epsilons(figure.add_subplot(grid[:, 0]), rows)
    for index, group in enumerate(groups):
        _draw_accuracy(figure.add_subplot(grid[index, 1]), rows, group)
    return figure


def _draw_epsilons(axes: Axes, rows: Sequence[Row]) -> None:
    """A line of three points for each variant; an infinite epsilon is an arrow at the edge."""
    given = np.array([(row.claimed.high, row.holds.high, row.audited) for row in rows]).reshape(-1, 3)
    positive = given[np.isfinite(given) & (given > 0)]
    low, high = (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10.0)
    edge = high * 1.25
    for place, (claimed, holds, audited) in enumerate(given.tolist()):
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
    axes.xaxis.set_major_formatter(plain)
    axes.set_yticks(range(len(rows)), [_label(place + 1, row) for place, row in enumerate(rows)], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    tidied(axes, "x", spines=("top", "right", "left"))
    axes.tick_params(axis="y", length=0)
    deltas = ", ".join(f"{value:g}" for value in sorted({row.delta for row in rows}))
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


def _label(number: int, row: Row) -> str:
    entry = row.entry
    variant = entry.variant if entry.variant not in ("", entry.method) else "as published"
    unit = "" if row.unit == "client" else f", {row.unit}"
    text = "\n".join(textwrap.wrap(f"{entry.method}: {variant}{unit}", 52))
    return f"{text}  [{entry.dataset}]{'  ✓' if entry.repaired else ''}  {number}"


def _draw_accuracy(axes: Axes, rows: Sequence[Row], group: Group) -> None:
    """Accuracy over the epsilon that holds, repaired ones filled; arrows run from a published variant to its repair."""
    members = [
        (number, row, place)
        for number, row in enumerate(rows, 1)
        for place in row.entry.tables
        if _group(row, place) == group
    ]
    finite = [row.holds.high for _, row, _ in members if math.isfinite(row.holds.high)]
    low, edge = (min(finite) / 1.5, max(finite) * 1.8) if finite else (0.1, 10.0)
    at = {place.series: (min(row.holds.high, edge), row.accuracy) for _, row, place in members}
    for number, row, place in members:
        (x, y), interval = at[place.series], row.cell.accuracy
        colour = _AUDITED if place.repairs else _CLAIMED
        marker, fill = ">" if math.isinf(row.holds.high) else "o", colour if place.repairs else "white"
        draw_point(axes, x, y, interval, marker, colour, ms=7, mfc=fill, elinewidth=1, capsize=2, zorder=3)
        axes.annotate(str(number), (x, y), xytext=(6, 4), textcoords="offset points", fontsize=9, color=colour)
        if place.repairs in at:  # what it repairs may be left out of the table
            arrow(axes, at[place.repairs], (x, y), "#888888", 2, arrowstyle="->", shrinkA=6, shrinkB=6, linewidth=0.9)
    axes.set_xscale("log")
    axes.set_xlim(low, edge * 1.25)
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else ""))
    axes.tick_params(axis="x", which="minor", labelsize=9)
    axes.margins(y=0.2)
    tidied(axes)
    count = values.plural(values.span(row.cell.seeds for _, row, _ in members), "seed")
    axes.set_title(textwrap.fill(f"{group[0]}, {group[1]}: {group[2]} {group[3]}", 48), fontsize=10)
    edge_text = "\nat the edge: no finite ε holds" if len(finite) < len(members) else ""
    axes.set_xlabel(
        f"ε that holds, δ = {members[0][1].delta:g} (white: published, green: repaired){edge_text}", fontsize=8.5
    )
    axes.set_ylabel(f"accuracy, %\n({count}, 95 % intervals)", fontsize=8.5)
