"""Commands of `python -m dpwatch`.

Each command takes its parsed arguments, prints a table or JSON, and returns an exit
code.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import pkgutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsum.accounting import analyses
from dpsum.accounting.account import PROFILES, Account
from dpsum.accounting.account import account as account_of
from dpsum.accounting.accountant import Accountant, Contradiction, Events
from dpsum.accounting.calibration import calibrate
from dpsum.accounting.profiles import width_text
from dpsum.accounting.statement import all_accounts
from dpsum.accounting.statement import statement as statement_of
from dpsum.errors import DpsumError
from dpsum.files import writing
from dpsum.ledger import Release, read_ledger
from dpsum.progress import Progress
from dpwatch import export
from dpwatch.audit.anything import Audited, audited
from dpwatch.calculator import Grid, calculator_page, compute_tables
from dpwatch.check.command import check as run_checked
from dpwatch.check.command import default_settings
from dpwatch.check.report import NOTHING_WATCHED, PROVEN, lines_of
from dpwatch.statement_page import statement_page

NO = 3
"""Exit code of a command whose answer is no."""

UNWATCHED = 4
"""Exit code of a check that watched nothing."""

FAILED = 5
"""Exit code of a check whose command failed."""

_WIDTH = 110


# account


def account(given: argparse.Namespace) -> int:
    """Print epsilon of a ledger."""
    result = account_of(_releases(given.ledger), delta=given.delta)
    report = export.report(account=result, ledger=given.ledger)
    _show(given, report, _account_lines(result))
    return _kept(
        given,
        [
            part.profiles["proven"].epsilon_high
            for part in all_accounts(result)
            if "proven" in part.profiles
        ],
    )


def _releases(path: str) -> list[Release]:
    releases = read_ledger(path)
    if not releases:
        raise DpsumError(
            f"{path} has no release: it is empty, or nothing private was released; name"
            " a run's ledger"
        )
    return releases


def _account_lines(account: Account) -> list[str]:
    lines = []
    for part in all_accounts(account):
        if part.unit is None:
            return [next(iter(part.reasons.values()), "nothing private was released")]
        entries = [
            (name, part.profiles[name]) for name in PROFILES if name in part.profiles
        ]
        first = entries[0][1]
        settings = dict(part.sampler or {})
        sampler = " ".join(f"{key} {value}" for key, value in settings.items())
        lines += [
            f"{part.rounds} rounds done of the sampler {sampler}; z"
            f" {_number(part.noise_multiplier)}, delta {part.delta:g}, unit"
            f" {part.unit}, seen by {first.observer}"
        ]
        rows = [
            [
                name,
                _ends(entry.epsilon_low, entry.epsilon_high),
                entry.adjacency,
                entry.status,
                entry.explanation,
            ]
            for name, entry in entries
        ]
        rows += [[name, "-", "", "", why] for name, why in part.reasons.items()]
        lines += _table(
            ["profile", "epsilon", "adjacency", "status", "what it takes for granted"],
            rows,
        )
        lines += list(part.notices)
    return lines


# plan


def plan(given: argparse.Namespace) -> int:
    """Print noise for epsilon, or epsilon for noise, for each known participation."""
    kinds = given.kind or [
        kind
        for mechanism, kind in analyses.pairs()
        if mechanism == "gaussian" and not analyses.find(mechanism, kind).within_task
    ]
    plans: list[dict[str, Any]] = []
    for kind in kinds:
        row: dict[str, Any] = dict.fromkeys(
            (
                "participation",
                "adjacency",
                "noise_multiplier",
                "epsilon_low",
                "epsilon_high",
            )
        )
        row["participation"] = kind
        try:
            analysis = analyses.find("gaussian", kind)
            row["adjacency"] = analysis.adjacency
            row |= _planned(given, analysis)
        except Contradiction as error:
            row["reason"] = error.why
        except ArithmeticError:
            row["reason"] = "its epsilon leaves the range of double precision"
        plans.append(row)
    if not any(row["noise_multiplier"] for row in plans):
        whys = "; ".join(f"{row['participation']}: {row['reason']}" for row in plans)
        raise DpsumError(
            "no participation fits these numbers: change --units, --cohort, --rounds"
            f" or --set ({whys})"
        )
    rows = [
        [
            row["participation"],
            row["adjacency"],
            _number(row["noise_multiplier"]),
            _ends(row["epsilon_low"], row["epsilon_high"]),
            row.get("reason", row.get("takes", "")),
        ]
        for row in plans
    ]
    head = (
        f"{given.rounds} rounds of {given.cohort:g} of {given.units:,} units, delta"
        f" {given.delta:g}"
    )
    report = {
        key: getattr(given, key) for key in ("units", "cohort", "rounds", "delta")
    } | {"plans": plans}
    _show(
        given,
        report,
        [
            head,
            *_table(
                [
                    "participation",
                    "adjacency",
                    "z",
                    "epsilon",
                    "what it takes for granted",
                ],
                rows,
            ),
        ],
    )
    return _kept(
        given, [row["epsilon_high"] for row in plans if row["epsilon_high"] is not None]
    )


def _planned(given: argparse.Namespace, analysis: Accountant) -> dict[str, Any]:
    sampler = _sampler(analysis, given)
    z = given.noise_multiplier
    if z is None:
        z = calibrate("proven", sampler, given.epsilon, given.delta)
    events = Events.planned(((float(z), int(given.rounds)),), sampler)
    low, high = analysis.bracket(events, given.delta)
    reason = analysis.width_reason(events, given.delta)
    return {
        "noise_multiplier": z,
        "epsilon_low": low,
        "epsilon_high": high,
        "takes": analysis.explanation + width_text(low, high, reason),
    }


def _sampler(analysis: Accountant, given: argparse.Namespace) -> dict[str, Any]:
    """Return the sampler of the command's arguments; the rate is the cohort's share.

    Under replace-one adjacency a unit is in the release with certainty.
    """
    if analysis.within_task:
        raise DpsumError(
            f"{analysis.pair[1]} is for sums that clients take over their own"
            " examples: choose another kind"
        )
    sampler = {
        "kind": analysis.pair[1],
        "clients": 1,
        "cohort": given.cohort,
        "rounds": given.rounds,
        "rate": given.cohort / given.units,
    }
    sampler[analysis.units] = given.units
    if analysis.adjacency == "replace-one":
        sampler |= {"rate": 1.0, "steps": 1}
    sampler |= dict(given.set or ())
    analysis.check(sampler)
    return sampler


# statement, calculator


def statement(given: argparse.Namespace) -> int:
    """Print the statement of a ledger's account; write it as a page."""
    releases = _releases(given.ledger)
    result = account_of(releases, delta=given.delta)
    remarks = {"tuning": given.tuning, "delta_reason": given.delta_reason}
    text = statement_of(result, **remarks)
    report = {"statement": text, "account": result.to_json()}
    paragraphs = [textwrap.fill(part, _WIDTH) for part in text.split("\n\n")]
    _show(given, report, ["\n\n".join(paragraphs)])
    if given.html is not None:
        _write(given.html, statement_page(result, releases=releases, **remarks))
    return 0


def calculator(given: argparse.Namespace) -> int:
    """Compute a grid of ends of epsilon, and write the page that shows them."""
    data = compute_tables(Grid(), processes=given.processes)
    _write(given.output, calculator_page(data))
    numbers = {key: data[key] for key in ("size", "seconds", "processes")}
    line = f"{given.output}: {data['size']:,} points in {data['seconds']:g} s"
    _show(given, numbers, [line])
    return 0


def _write(path: str, text: str) -> None:
    temporary = Path(f"{path}.part")
    with writing(path, temporary):
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


# audit


def audit(given: argparse.Namespace) -> int:
    """Print a lower bound on the epsilon of a function's releases."""
    release = _function(given.release)
    participation = (
        None if given.participation is None else _function(given.participation)
    )
    shown = functools.cache(
        lambda total: Progress(f"audit {given.release}", total, unit="calls")
    )
    result = audited(
        release,
        dimension=given.dimension,
        participation=participation,
        epsilon=given.epsilon,
        noise_multiplier=given.noise_multiplier,
        delta=given.delta,
        mechanism=None if given.any_mechanism else "gaussian",
        adjacency=given.adjacency,
        cohort=given.rows,
        leak=given.leak,
        power=given.power,
        calls=given.calls,
        false_alarm=given.false_alarm,
        seed=given.seed,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        progress=lambda done, total: shown(total).step(done, 1),
    )
    _show(given, export.report(audit=result), _audit_lines(result))
    return NO if result.refuted else _kept(given, [result.epsilon])


def _function(name: str) -> Any:
    """Import the function that `module:function` names.

    Raises:
        DpsumError: the function does not exist, or its module cannot be imported.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise DpsumError(
            f"{name} is not module:function: write it as my_training:release"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:
        raise DpsumError(
            f"{module} cannot be imported ({type(error).__name__}: {error}): correct it"
        ) from error
    try:
        return pkgutil.resolve_name(name)
    except AttributeError:
        raise DpsumError(
            f"{module} has no {path}: name a function of contributions [n, d]"
        ) from None


def _audit_lines(audit: Audited) -> list[str]:
    rows = [
        [
            attack.name,
            f"{attack.calls:,}",
            f"{attack.observations:,}",
            _number(attack.bound.epsilon),
            _number(attack.bound.ideal),
            _number(attack.bound.numbers["leak"]),
            f"{attack.bound.numbers['chance_of_as_much']:.2g}",
        ]
        for attack in audit.attacks
    ]
    head = [
        "attack",
        "calls",
        "canaries",
        "epsilon at least",
        "ideal",
        "leak",
        "chance in right code",
    ]
    return [
        *_table(head, rows),
        f"at {audit.confidence:.0%} confidence, delta {audit.delta:g}, for"
        f" {audit.adjacency}: {audit.status}",
    ]


# check


def check(given: argparse.Namespace) -> int:
    """Run a command under watch, and print what is proven of its training."""
    words = list(given.words)
    if words[:1] == ["--"]:
        words = words[1:]
    settings = {name: getattr(given, name) for name in default_settings()}
    content = run_checked(words, folder=given.keep, settings=settings)
    _show(given, content, lines_of(content))
    if content["exit_code"]:
        return FAILED
    if content["verdict"] == NOTHING_WATCHED:
        return UNWATCHED
    if content["verdict"] != PROVEN:
        return NO
    return _kept(
        given,
        [
            float(item["account"]["profiles"]["proven"]["epsilon_high"])
            for item in content["watched"]
        ],
    )


# Tables, files, exits


def _kept(given: argparse.Namespace, epsilons: Sequence[float]) -> int:
    if given.at_most is None:
        return 0
    most = max(epsilons, default=math.inf)
    if most <= given.at_most:
        return 0
    print(
        f"epsilon is {_number(most)}, above the {given.at_most:g} of --at-most",
        file=sys.stderr,
    )
    return NO


def _show(
    given: argparse.Namespace, report: dict[str, Any], lines: Sequence[str]
) -> None:
    text = json.dumps(export.plain(report), indent=2, allow_nan=False) + "\n"
    if given.json == "-":
        print(text, end="")
        return
    print("\n".join(lines))
    if given.json is not None:
        _write(given.json, text)


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _ends(low: float | None, high: float | None) -> str:
    ends = [_number(low), _number(high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a text table; long text in the last column is wrapped."""
    widths = [
        max(len(row[column]) for row in [head, *rows])
        for column in range(len(head) - 1)
    ]
    used = sum(widths) + 2 * len(widths)
    lines = []
    for row in [head, *rows]:
        folded = textwrap.wrap(row[-1], max(_WIDTH - used, 30)) or [""]
        cells = "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=False)
        )
        lines += [
            f"{cells}  {folded[0]}".rstrip(),
            *(" " * used + more for more in folded[1:]),
        ]
    return lines
