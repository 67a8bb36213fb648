"""The table of privacy: for each private configuration several epsilons.

They are the epsilon that the paper prints, the one that its accounting gives for this run, the one that holds, and an
audited lower bound. `docs/privacy.md` explains each; `privacy_figure` draws them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import finished_ledger
from dpfedbench.reporting import values
from dpfedbench.reporting.audited import Audits, marked
from dpfedbench.reporting.described import Private
from dpfedbench.reporting.results import CellResult, Published, read_cell, read_published, worst_epsilon
from dpfedbench.reporting.values import Shown
from dpsum.accounting.account import Account
from dpsum.accounting.profiles import Entry
from dpsum.ledger import check_same_mechanism

TITLE = "Three ε beside every private number"
ANOTHER = "of another mechanism than the ledger's"
PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed epsilons stand; x is the noise multiplier."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A private configuration and one unit that it protects: most protect one; two-fold privacy has two.

    Attributes:
        noise_multiplier: the least of all seeds.
        printed: the paper's ε; None where the paper gives none for this noise multiplier.
        claimed, holds: of the worst seed; `holds` names the unit, the adjacency, the observer and δ.
        audited: a lower bound, and `audit` how it was found; `audit_note` why it says nothing, where it does not.
        ideal: what the best attacker would show with as many observations in half of all audits; None where the audit
            does not say.
        image_level: None where there is no account of images.
        reason: what each number rests on.
    """

    entry: Private
    noise_multiplier: float
    printed: float | None
    claimed: Entry
    holds: Entry
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
    audits = Audits(entries, results)
    return [row for entry in entries for row in _rows(entry, Path(results), printed[entry.paper], audits)]


def _rows(entry: Private, results: Path, printed: Sequence[Published], audits: Audits) -> list[Row]:
    cell, rows, also = read_cell(results, entry.folders), list[Row](), ""
    folder, accounts = cell.runs[0].folder, [(run.account, *run.account.also) for run in cell.runs]
    if entry.audited != entry.folders[0]:
        own, other = (finished_ledger(run)[0] for run in (folder, results / "runs" / entry.audited))
        check_same_mechanism(own, other, whose=f"the audited {entry.audited}", mend=f"delete {folder} and run again")
        also = f"made for {Path(entry.audited).parent}, whose mechanism is the same"
    try:
        for of_unit in zip(*accounts, strict=True):
            holds = of_unit[0].profiles["holds"]
            found = audits.of(entry.group).get((holds.unit, holds.observer))
            if found is None:
                raise BenchError(
                    f"the audit of {folder.parent} was made for other releases: delete its audit.json and run the "
                    "workflow again"
                )
            of_audit = ", ".join(filter(None, [found.get("reason"), also]))
            rows.append(_row(entry, cell, of_unit, found, of_audit, printed, audits.count))
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
    count: int,
) -> Row:
    """Of one unit: its accounts, one for each seed, and its audit, which is one of so many."""
    image = worst_epsilon(accounts, "image_level")
    claimed, held = (marked(worst_epsilon(accounts, profile), audit, count) for profile in ("as_claimed", "holds"))
    said = [f"claimed: {claimed.explanation}", f"holds: {held.explanation}"]
    said += [f"image level: {image.explanation}"] * ("image_level" in accounts[0].profiles)
    said += [f"audit: {of_audit}"] * bool(of_audit)
    return Row(
        entry=entry,
        noise_multiplier=min(account.noise_multiplier or math.inf for account in accounts),
        printed=_printed(entry, held.unit, printed),
        claimed=claimed,
        holds=held,
        audited=float(audit["epsilon"]),
        ideal=audit.get("epsilon_ideal"),
        audit=f"{audit['method']}, {100 * audit['confidence']:g} % confidence",
        image_level=None if math.isnan(image.epsilon_high) else image.epsilon_high,
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
            "unit": row.holds.unit,
            "adjacency": row.holds.adjacency,
            "observer": row.holds.observer,
            "delta": row.holds.delta,
            "noise_multiplier": row.noise_multiplier,
            "epsilon_printed": "not printed" if row.printed is None else row.printed,
            "epsilon_claimed": row.claimed.epsilon_high,
            "claimed_status": row.claimed.stands,
            "epsilon_holds_low": row.holds.epsilon_low,
            "epsilon_holds_high": row.holds.epsilon_high,
            "holds_status": row.holds.stands,
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
        texts["epsilon_holds"] = values.between(row.holds.epsilon_low, row.holds.epsilon_high, ".4g", nothing="none")
        texts["epsilon_audited"] = dataclasses.replace(texts["epsilon_audited"], note=row.audit_note)
        texts["ci"] = values.between(row.cell.accuracy.low, row.cell.accuracy.high, ".4g")
        words = {name: name.replace("_", " ").replace("epsilon", "ε").replace("delta", "δ") for name in PAGE}
        found.append({words[name]: texts[name] for name in PAGE})
    return found


NOTES = (
    "ε printed: the number in the paper, at the paper's scale. ε recomputed as claimed: the paper's accounting, "
    "applied to the run made here. ε that holds: proved for the sampler that ran and for the observer. ε audited: a "
    "lower bound from canaries, with 95 % confidence; a low bound proves nothing. Ideal attacker: the bound that the "
    "best possible attacker reaches in half of all audits with as many canaries. docs/privacy.md explains each.",
    "Audited above what holds: the lower bound exceeds the ε. With correct code this happens by chance in one audit of "
    "twenty, so expect it in a few of many rows; the row says how often correct code has such a bound. Refuted: of a "
    "hundred tables like this one, fewer than one would have such a row by chance.",
    "The CSV also has the observer, the adjacency, the image-level account and the intervals of accuracy. Its column "
    "`reason` says what each number rests on, and why an ε is infinite.",
)


def to_markdown(rows: Sequence[Row], command: str) -> str:
    """The table for people: those that a table of a paper shows come with all columns that fit a page."""
    texts = [
        {
            "paper": row.entry.paper,
            "method": f"{row.entry.method}, {row.entry.variant}" + (" (repaired)" if row.entry.repaired else ""),
            "data": f"{row.entry.dataset} {row.entry.task}",
            "unit": row.holds.unit,
            "δ": f"{row.holds.delta:g}",
            "z": f"{row.noise_multiplier:.3g}",
            "ε printed": values.number(row.printed, nothing="not printed").text,
            "ε recomputed as claimed": f"{values.number(row.claimed.epsilon_high).text} ({row.claimed.stands})",
            "ε that holds": f"{values.epsilon(row.holds).text} ({row.holds.stands})",
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


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Each repair directly after what it repairs, where that is drawn."""
    found = [row for row in rows if _mended(row, rows) is None]
    for row in rows:
        if (mended := _mended(row, rows)) is not None:
            place = next(index for index, other in enumerate(found) if other is mended)
            while place + 1 < len(found) and _mended(found[place + 1], rows) is mended:
                place += 1
            found.insert(place + 1, row)
    return found


def _mended(row: Row, rows: Sequence[Row]) -> Row | None:
    """What a row repairs, among rows of the same unit; None also where that is a repair itself."""
    wanted = {(place.paper, place.item, place.repairs) for place in row.entry.tables if place.repairs}
    for other in rows:
        places = {(place.paper, place.item, place.series) for place in other.entry.tables}
        if wanted & places and other.holds.unit == row.holds.unit and not other.entry.repaired:
            return other
    return None


def drawn(rows: Sequence[Row]) -> pd.DataFrame:
    """The numbers of the figure."""
    columns = [
        "paper", "method", "variant", "role", "dataset", "task", "unit", "delta", "epsilon_claimed",
        "epsilon_holds_high", "epsilon_audited", "accuracy", "ci_low", "ci_high", "seeds",
    ]  # fmt: skip
    table = tidy(ordered(shown(rows)))[columns]
    return table.assign(number=range(1, len(table) + 1))[["number", *columns]]
