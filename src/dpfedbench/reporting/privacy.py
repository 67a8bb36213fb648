"""The table of privacy: for each private configuration several epsilons.

They are the epsilon that the paper prints, the one that its accounting gives for this
run, the one that holds, and an audited lower bound. `docs/privacy.md` explains each;
`privacy_figure` draws them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import finished_ledger
from dpfedbench.reporting import values
from dpfedbench.reporting.audited import Audit, Audits, marked
from dpfedbench.reporting.described import Private
from dpfedbench.reporting.results import (
    CellResult,
    Published,
    read_cell,
    read_published,
    worst_epsilon,
)
from dpfedbench.reporting.values import Listing
from dpsum.accounting.account import Account
from dpsum.accounting.profiles import Entry
from dpsum.ledger import check_same_mechanism

TITLE = "Three ε: as claimed, that holds, audited"
PRINTED_ITEM = "epsilon"
"""The item of config/published.csv under which a paper's printed epsilons stand; x is
the noise multiplier.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A private configuration and one unit that it protects: most protect one; two-fold
    privacy has two.

    Attributes:
        noise_multiplier: the least of all seeds.
        printed: the paper's ε; None where the paper gives none for this noise
            multiplier.
        claimed, holds: of the worst seed; `holds` names the unit, the adjacency, the
            observer and δ.
        audited: a lower bound, and `audit` how it was found; `audit_note` why it says
            nothing, where it does not.
        ideal: what the best attacker would show with as many observations in half of
            all audits; None where the audit does not say.
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


def read(
    entries: Sequence[Private], results: str | Path, published: str | Path
) -> list[Row]:
    """One row for each private configuration (`Plan.private`) and each unit that it
    protects.

    Of several seeds the worst account counts; the audit is that of the first seed, or
    of another configuration with the same mechanism, which `reason` then names.

    Raises:
        BenchError: a file of a run is missing or damaged, or the mechanism of its
            ledger is not the one audited.
    """
    printed = {
        entry.paper: read_published(published, entry.paper, PRINTED_ITEM)
        for entry in entries
    }
    audits, rows = Audits(entries, results), list[Row]()
    for entry in entries:
        cell, other = read_cell(results, entry.folders), ""
        folder = cell.runs[0].folder
        if entry.audited != entry.folders[0]:
            ledgers = (
                finished_ledger(run)[0]
                for run in (folder, Path(results, "runs", entry.audited))
            )
            check_same_mechanism(
                *ledgers,
                whose=f"the audited {entry.audited}",
                mend=f"delete {folder} and run again",
            )
            other = (
                f"made for {Path(entry.audited).parent}, whose mechanism is the same"
            )
        try:
            for accounts in cell.accounts_by_unit:
                audit = audits.of(entry.group, accounts[0].profiles["holds"])
                if audit is None:
                    raise BenchError(
                        f"the audit of {folder.parent} was made for other releases:"
                        " delete its audit.json and run the workflow again"
                    )
                rows.append(
                    _row(
                        entry,
                        cell,
                        accounts,
                        audit,
                        other,
                        printed[entry.paper],
                        audits.count,
                    )
                )
        except (KeyError, TypeError, ValueError) as error:
            raise BenchError(
                f"an account or audit of {folder.parent} lacks {error}: delete it and"
                " run again"
            ) from error
    return rows


def _row(
    entry: Private,
    cell: CellResult,
    accounts: Sequence[Account],
    audit: Audit,
    other: str,
    printed: Sequence[Published],
    count: int,
) -> Row:
    """Of one unit: its accounts, one for each seed, and its audit, one of `count` and
    perhaps another run's.
    """
    claimed, holds = (
        marked(worst_epsilon(accounts, profile), audit, count)
        for profile in ("as_claimed", "holds")
    )
    image, of_audit = (
        worst_epsilon(accounts, "image_level"),
        ", ".join(filter(None, [audit.get("reason"), other])),
    )
    said = [f"claimed: {claimed.explanation}", f"holds: {holds.explanation}"]
    said += [f"image level: {image.explanation}"] * (
        "image_level" in accounts[0].profiles
    )
    said += [f"audit: {of_audit}"] * bool(of_audit)
    return Row(
        entry=entry,
        noise_multiplier=min(
            account.noise_multiplier or math.inf for account in accounts
        ),
        printed=_printed(entry, holds.unit, printed),
        claimed=claimed,
        holds=holds,
        audited=float(audit["epsilon"]),
        ideal=audit.get("epsilon_ideal"),
        audit=f"{audit['method']}, {100 * audit['confidence']:g} % confidence",
        image_level=None if math.isnan(image.epsilon_high) else image.epsilon_high,
        cell=cell,
        reason="; ".join(said),
        audit_note=(
            "of another mechanism than the ledger's"
            if audit.get("another_mechanism")
            else ""
        ),
    )


def _printed(entry: Private, unit: str, printed: Sequence[Published]) -> float | None:
    """The paper's epsilon at this noise multiplier; a number without a multiplier is
    for all of them.

    Where a method protects two units, the printed number's variant names the one it is
    for.
    """
    for number in printed:
        fits = number.method == entry.method and number.variant in ("", unit)
        if fits and not entry.repaired and number.x in (None, entry.multiplier):
            return number.value
    return None


def tidy(rows: Sequence[Row]) -> pd.DataFrame:
    """The table for programs; its CSV has no empty cell: "none" stands where there is
    nothing.
    """
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
            "epsilon_image_level": (
                "none" if row.image_level is None else row.image_level
            ),
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
    "method",
    "dataset",
    "task",
    "accuracy",
    "epsilon_printed",
    "epsilon_claimed",
    "epsilon_holds",
    "epsilon_audited",
    "epsilon_ideal",
    "epsilon_image_level",
    "claimed_status",
    "holds_status",
    "paper",
    "role",
    "unit",
    "adjacency",
    "observer",
    "delta",
    "noise_multiplier",
    "audit",
    "ci",
    "seeds",
    "reason",
    "runs",
)
"""The columns of the page, in its order."""


def for_page(rows: Sequence[Row]) -> Listing:
    """All that the CSV has, for the page."""
    shown_rows = []
    for row, record in zip(rows, tidy(rows).to_dict("records"), strict=True):
        shown = {
            str(name): (
                values.words(value)
                if isinstance(value, str)
                else values.number(value, ".4g", nothing="none")
            )
            for name, value in record.items()
        }
        interval = row.cell.accuracy
        shown["method"] = values.words(row.entry.title, row.entry.variant)
        shown["epsilon_holds"] = values.between(
            row.holds.epsilon_low, row.holds.epsilon_high, ".4g", nothing="none"
        )
        shown["epsilon_audited"] = dataclasses.replace(
            shown["epsilon_audited"], note=row.audit_note
        )
        shown["ci"] = values.between(interval.low, interval.high, ".4g")
        shown_rows.append(
            {
                name.replace("_", " ")
                .replace("epsilon", "ε")
                .replace("delta", "δ"): shown[name]
                for name in PAGE
            }
        )
    return Listing(title=TITLE, rows=shown_rows, notes=NOTES)


NOTES = (
    (
        "ε printed: the number in the paper, at the paper's scale. ε recomputed as"
        " claimed: the paper's accounting, applied to the run made here. ε that holds:"
        " proved for the sampler that ran and for the observer. ε audited: a lower"
        " bound from canaries, with 95 % confidence; a low bound proves nothing. Ideal"
        " attacker: the bound that the best possible attacker reaches in half of all"
        " audits with as many canaries. docs/privacy.md explains each."
    ),
    (
        "Audited above what holds: the lower bound exceeds the ε. With correct code"
        " this happens by chance in one audit of twenty, so expect it in a few of many"
        " rows; the row says how often correct code has such a bound. Refuted: of a"
        " hundred tables like this one, fewer than one would have such a row by chance."
    ),
    (
        "The CSV also has the observer, the adjacency, the image-level account and the"
        " intervals of accuracy. Its column `reason` says what each number rests on,"
        " and why an ε is infinite."
    ),
)


def listing(rows: Sequence[Row]) -> Listing:
    """The columns that fit a page of text, for people."""
    words, number = values.words, values.number
    shown_rows = [
        {
            "paper": words(row.entry.paper),
            "method": words(
                f"{row.entry.method}, {row.entry.variant}"
                + " (repaired)" * row.entry.repaired
            ),
            "data": words(f"{row.entry.dataset} {row.entry.task}"),
            "unit": words(row.holds.unit),
            "δ": number(row.holds.delta, "g"),
            "z": number(row.noise_multiplier),
            "ε printed": number(row.printed, nothing="not printed"),
            "ε recomputed as claimed": number(
                row.claimed.epsilon_high, note=row.claimed.stands
            ),
            "ε that holds": words(
                f"{values.epsilon(row.holds).text} ({row.holds.stands})"
            ),
            "ε audited, at least": number(row.audited, note=row.audit_note),
            "of an ideal attacker": number(row.ideal, nothing="none"),
            "accuracy, %": number(row.accuracy, ".1f"),
        }
        for row in rows
    ]
    return Listing(
        title="Three ε beside every private number", rows=shown_rows, notes=NOTES
    )


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows that the figure draws: of each paper's table those of its first task,
    data set and all.

    A table's further tasks have the same mechanisms and tell the same: with all of them
    the figure is too long to read. Of a paper whose tables show nothing private, those
    of its figures.
    """
    tabled = {row.entry.paper for row in rows if row.entry.tables}
    first: dict[
        tuple[str, str], tuple[str, str]
    ] = {}  # of a table, the data set and task
    kept = []
    for row in rows:
        # A table without a paper of its own stands for the figures of a paper that has
        # no table.
        places = [(place.paper, place.item) for place in row.entry.tables]
        places = places or [(row.entry.paper, "")] * (row.entry.paper not in tabled)
        task = (row.entry.dataset, row.entry.task)
        if any([first.setdefault(place, task) == task for place in places]):
            kept.append(row)
    return kept


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Each repair directly after what it repairs, where that is drawn."""
    mended = {
        place: other
        for place, row in enumerate(rows)
        if (other := _mended(row, rows)) is not None
    }
    order = sorted(
        range(len(rows)), key=lambda place: (mended.get(place, place), place in mended)
    )
    return [rows[place] for place in order]


def _mended(row: Row, rows: Sequence[Row]) -> int | None:
    """The place of what a row repairs, among rows of the same unit; None also where
    that is a repair itself.
    """
    wanted = {
        (place.paper, place.item, place.repairs)
        for place in row.entry.tables
        if place.repairs
    }
    for number, other in enumerate(rows):
        shown = {
            (place.paper, place.item, place.series) for place in other.entry.tables
        }
        if (
            wanted & shown
            and other.holds.unit == row.holds.unit
            and not other.entry.repaired
        ):
            return number
    return None


def drawn(rows: Sequence[Row]) -> pd.DataFrame:
    """The numbers of the figure."""
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
        "epsilon_audited",
        "accuracy",
        "ci_low",
        "ci_high",
        "seeds",
    ]
    table = tidy(ordered(shown(rows)))[columns]
    return table.assign(number=range(1, len(table) + 1))[["number", *columns]]
