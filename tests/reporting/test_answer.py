"""What the page opens with: which configuration answers for a paper, and which repair
is the best that is valid.
"""

import math
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.evaluation.intervals import Interval
from dpfedbench.reporting import answer
from dpfedbench.reporting.described import Place, Private
from dpfedbench.reporting.privacy import Row
from dpfedbench.reporting.results import CellResult, RunFiles
from dpsum.accounting.account import Account
from dpsum.accounting.profiles import Entry


def row(
    name: str,
    accuracy: float,
    holds: tuple[float, float],
    claimed: float = math.nan,
    **given: Any,
) -> Row:
    """A configuration of DP-AGR on letters in its paper's table, with what is said
    otherwise.
    """
    told: dict[str, Any] = {
        "method": "dp-agr",
        "paper": "dp-fedmeta",
        "dataset": "glyphs",
        "task": "5-way 1-shot",
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
        "delta": 1e-6,
        "status": "proved",
        "repairs": "",
        "printed": None,
        "start": "",
    } | given
    folder = f"{told['method']}/{name}/seed0"
    entry = Private(
        paper=told["paper"],
        tables=(
            Place(
                paper=told["paper"], item="table", series=name, repairs=told["repairs"]
            ),
        ),
        method=told["method"],
        title=told["method"].upper(),
        variant=name,
        multiplier=None,
        dataset=told["dataset"],
        task=told["task"],
        folders=(folder,),
        audited=folder,
        start=told["start"],
    )
    nothing = Account(delta=told["delta"], reasons={})
    cell = CellResult(
        runs=(RunFiles(folder=Path(folder), metrics={}, account=nothing, training={}),),
        milliseconds=None,
        tasks=2,
        accuracy=Interval(
            mean=accuracy, low=accuracy - 1, high=accuracy + 1, count=3, over="seeds"
        ),
        counted="task",
        validated=None,
        claimed=epsilon(claimed, claimed),
        holds=epsilon(*holds),
        delta=told["delta"],
        unit=told["unit"],
        notices=(),
    )
    return Row(
        entry=entry,
        noise_multiplier=1.0,
        printed=told["printed"],
        claimed=epsilon(claimed, claimed),
        holds=epsilon(
            *holds,
            **{
                key: told[key]
                for key in ("status", "unit", "adjacency", "observer", "delta")
            },
        ),
        audited=0.0,
        ideal=None,
        audit="",
        image_level=None,
        cell=cell,
        reason="",
    )


def epsilon(low: float, high: float, **given: Any) -> Entry:
    of_what = {
        "delta": 1e-6,
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
    }
    return Entry(
        **{
            "epsilon_low": low,
            "epsilon_high": high,
            "status": "proved",
            "explanation": "",
        }
        | of_what
        | given
    )


PUBLISHED = row("published", 85, (4.8, 4.9), claimed=3.5, printed=1.5)


def best(*others: Row) -> str | None:
    (found,) = answer.read([PUBLISHED, *others])
    assert found.published is PUBLISHED
    return None if found.repair is None else found.repair.entry.variant


def test_the_best_repair_is_the_most_accurate_whose_upper_end_is_within_the_claim() -> (
    None
):
    assert (
        best(
            row("low", 70, (1.4, 1.5)),
            row("high", 80, (3.3, 3.5)),
            row("beyond", 84, (3.4, 3.51)),
        )
        == "high"
    )


def test_a_repair_with_infinite_epsilon_never_wins() -> None:
    assert best(row("raw norms", 99, (3.0, math.inf))) is None
    infinite = row("published", 85, (math.inf, math.inf), claimed=math.inf)
    assert answer.read([infinite, row("raw norms", 99, (math.inf, math.inf))]) == []


@pytest.mark.parametrize(
    "other",
    [
        {"dataset": "digits"},
        {"task": "5-way 5-shot"},
        {"unit": "record"},
        {"adjacency": "replace-one"},
        {"observer": "server"},
        {"delta": 1e-5},
        {"status": "as run"},
        {"status": "void"},
        {"method": "dp-maml"},
        {"start": "from maml on glyph-symbols"},
    ],
)
def test_what_is_of_something_else_or_not_proved_is_no_repair(
    other: dict[str, Any],
) -> None:
    assert best(row("other", 99, (1.0, 1.0), **other)) is None


def test_a_smaller_delta_and_another_method_of_the_same_paper_count() -> None:
    assert best(row("smaller", 60, (1.0, 1.0), delta=1e-7)) == "smaller"
    assert (
        best(
            row(
                "correlated",
                60,
                (1.0, 1.0),
                method="dp-agr-ftrl",
                paper="correlated-noise",
            )
        )
        == "correlated"
    )


def test_a_claim_that_holds_needs_no_repair() -> None:
    valid = row("published", 85, (3.0, 3.4), claimed=3.5)
    (found,) = answer.read([valid, row("worse", 70, (1.0, 1.0))])
    assert found.repair is valid
    (shown,) = answer.listing([found], {}).rows
    assert shown["best valid repair"].text == "none needed: the claim holds"


def test_what_a_repair_mends_answers_for_its_paper() -> None:
    """Neither what comes first, nor a repair, nor another paper's method; papers
    without a claim have no row.
    """
    first = row("first", 90, (1.0, 1.0), claimed=1.0)
    repair = row("repair", 80, (3.0, 3.0), claimed=3.0, repairs="published")
    foreign = row("foreign", 50, (9.0, 9.0), claimed=9.5, method="dp-reptile")
    unclaimed = row("unclaimed", 50, (9.0, 9.0), method="dp-maml", paper="dp-maml")
    (found,) = answer.read([foreign, first, repair, PUBLISHED, unclaimed])
    assert (found.paper, found.published) == ("dp-fedmeta", PUBLISHED)
    (alone,) = answer.read([foreign, first, unclaimed])
    assert alone.published is first


def test_without_a_claim_the_table_says_why_it_is_empty() -> None:
    unclaimed = answer.read(
        [row("unclaimed", 50, (9.0, 9.0), method="dp-maml", paper="dp-maml")]
    )
    text = answer.listing(unclaimed, {}).markdown("snakemake x")
    assert unclaimed == [] and "|" not in text
    assert (
        text == f"# {answer.TITLE}\n\n- {answer.NO_CLAIM}\n- Made by `snakemake x`.\n"
    )
    assert answer.NO_CLAIM not in answer.listing(answer.read([PUBLISHED]), {}).markdown(
        "snakemake x"
    )
    assert list(answer.tidy(unclaimed)) == list(answer.tidy(answer.read([PUBLISHED])))


def test_the_row_says_claim_range_accuracy_and_repair() -> None:
    found = answer.read([PUBLISHED, row("low", 70, (1.4, 1.5))])
    (shown,) = answer.listing(found, {"dp-fedmeta": "DP-FedMeta"}).rows
    assert {
        name: value.line.replace("\u00a0", " ") for name, value in shown.items()
    } == {
        "paper": "DP-FedMeta (DP-AGR; glyphs, 5-way 1-shot; of a client, δ = 1e-06)",
        "ε claimed": "3.5 (printed: 1.5)",
        "ε that holds": "4.8 to 4.9",
        "reaches, %": "85.0 (84.0 to 86.0)",
        "repair reaches, %": "70.0 (69.0 to 71.0)",
        "best valid repair": "low (ε = 1.5 holds)",
    }
    (record,) = answer.tidy(found).to_dict("records")
    assert (
        record["epsilon_claimed"],
        record["epsilon_holds_low"],
        record["epsilon_holds"],
    ) == (3.5, 4.8, 4.9)
    assert (
        record["repair_variant"],
        record["repair_epsilon_holds"],
        record["repair_accuracy"],
    ) == ("low", 1.5, 70)
    (nothing,) = answer.listing(answer.read([PUBLISHED]), {}).rows
    assert (
        nothing["repair reaches, %"].text == "none here"
        and nothing["paper"].text == "dp-fedmeta"
    )
