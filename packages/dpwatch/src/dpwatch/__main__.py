"""The command line of dpwatch: python -m dpwatch COMMAND.

`shell` has the commands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dpsum.errors import DpsumError
from dpsum.terminal import write_utf8, written
from dpwatch import shell

_EXITS = """exit codes: 0, done, and every limit that was named is kept; 1, an error, told in one line on standard
error; 2, the command was not understood, or a
number is out of its range; 3, the answer is no: epsilon is above --at-most, the audit refutes what
was declared, or a check's verdict is other than "proven"; 4, a check watched nothing; 5, the checked command itself
failed, and the report is of what ran before."""


def _number(
    low: float,
    high: float,
    *,
    strictly: bool = False,
    whole: bool = False,
) -> Callable[[str], float]:
    """Return a converter of an option's text to a number in a range.

    Args:
        low, high: the range, ends included.
        strictly: whether the ends are excluded.
        whole: whether the number is an integer.
    """

    def converted(text: str) -> float:
        kind = "a whole number" if whole else "a number"
        ends = f"between {low:g} and {high:g}" if strictly else f"{low:g} to {high:g}"
        try:
            value = int(text) if whole else float(text)
            inside = low < value < high if strictly else low <= value <= high
        except ValueError:
            inside = False
        if not inside or not text.isascii():
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind} {ends}")
        return value

    return converted


_DELTA = _number(0, 1, strictly=True)
_CHANCE = _number(0, 1, strictly=True)
_UNITS = _number(1, 10**12, whole=True)
_COHORT = _number(1e-6, 1e12)
_ROUNDS = _number(1, 10**7, whole=True)
_EPSILON = _number(1e-6, 1e4)
_AT_MOST = _number(0, 1e300)
_MULTIPLIER = _number(1e-3, 1e6)
_DIMENSION = _number(1, 1e9, whole=True)
_CALLS = _number(1, 1e9, whole=True)
_LEAK = _number(1, 1000, strictly=True)
_SEED = _number(0, 2**63 - 1, whole=True)
_LARGEST_SETTING = 1e12


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _cohort(text: str) -> int | float:
    return _whole(_COHORT(text))


def _setting(text: str) -> tuple[str, int | float | str]:
    """Return KEY=VALUE as a pair, whose value is a finite number or a text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(
            f"{text} is not KEY=VALUE: write e.g. --set separation=10"
        )
    try:
        number = float(value)
    except ValueError:
        return key, value
    if not abs(number) <= _LARGEST_SETTING or not text.isascii():
        raise argparse.ArgumentTypeError(
            f"{text!r}: it must lie between -{_LARGEST_SETTING:g} and"
            f" {_LARGEST_SETTING:g}"
        )
    return key, _whole(number)


class _OneLine(argparse.ArgumentParser):
    """Parser that prints an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())
        self.exit(2, f"error: {line}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLine(
        prog="python -m dpwatch",
        description="Account for, plan and audit private training.",
        epilog=_EXITS,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(
            name, help=summary, description=summary, epilog=_EXITS
        )
        parser.set_defaults(run=getattr(shell, name))
        parser.add_argument(
            "--json",
            metavar="FILE",
            help="write the result as JSON; - for standard output, no table",
        )
        return parser

    def delta(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--delta",
            type=_DELTA,
            default=1e-5,
            help="delta at which epsilon is computed; default %(default)s",
        )

    def at_most(parser: argparse.ArgumentParser, of: str) -> None:
        parser.add_argument(
            "--at-most",
            type=_AT_MOST,
            metavar="EPSILON",
            help=f"exit with status 3 if {of} is above EPSILON",
        )

    sub = command("account", "epsilon of a ledger, under each profile")
    sub.add_argument("ledger", metavar="LEDGER")
    delta(sub)
    at_most(sub, "the proven epsilon")

    sub = command(
        "plan",
        "the noise multiplier for an epsilon, or epsilon for a noise multiplier, by"
        " participation",
    )
    sub.add_argument(
        "--units",
        type=_UNITS,
        required=True,
        help="number of clients or records that cohorts are drawn from",
    )
    sub.add_argument(
        "--cohort",
        type=_cohort,
        required=True,
        help="number of units in a round, or its mean where it is random",
    )
    sub.add_argument("--rounds", type=_ROUNDS, required=True)
    sub.add_argument(
        "--set",
        action="append",
        type=_setting,
        metavar="KEY=VALUE",
        help="further parameter of the kind of participation; may be repeated",
    )
    delta(sub)
    target = sub.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--epsilon",
        type=float,
        help="find the least noise multiplier that keeps this epsilon",
    )
    target.add_argument(
        "--noise-multiplier",
        type=_MULTIPLIER,
        metavar="Z",
        help="find the epsilon of this noise multiplier",
    )
    sub.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help="kind of participation; may be repeated; default: all kinds",
    )
    at_most(sub, "epsilon of any participation that is planned")

    sub = command(
        "statement", "the guarantee of a ledger in plain English, as text or a page"
    )
    sub.add_argument("ledger", metavar="LEDGER")
    delta(sub)
    sub.add_argument("--html", metavar="FILE", help="write a page with curves")
    sub.add_argument(
        "--tuning", metavar="SENTENCE", help="what was tuned, and on which data"
    )
    sub.add_argument(
        "--delta-reason", metavar="SENTENCE", help="why this delta was chosen"
    )

    sub = command("calculator", "a page of proven epsilons with sliders, for a browser")
    sub.add_argument("--output", metavar="FILE", required=True)
    sub.add_argument(
        "--processes",
        type=_number(1, 1024, whole=True),
        default=1,
        help="number of processes that compute its grid; default %(default)s",
    )

    sub = command(
        "audit",
        "a lower bound on epsilon of a function of contributions [n, d] that returns"
        " what is released",
    )
    sub.add_argument(
        "release",
        metavar="MODULE:FUNCTION",
        help="function to audit; the current folder is searched too",
    )
    sub.add_argument(
        "--dimension",
        type=_DIMENSION,
        required=True,
        metavar="D",
        help="coordinates of a contribution",
    )
    declared = sub.add_mutually_exclusive_group()
    declared.add_argument(
        "--epsilon", type=_EPSILON, help="declared epsilon, at --delta"
    )
    declared.add_argument(
        "--noise-multiplier",
        type=_MULTIPLIER,
        metavar="Z",
        help="declared noise multiplier: noise over sensitivity",
    )
    delta(sub)
    sub.add_argument(
        "--any-mechanism",
        action="store_true",
        help="do not assume Gaussian noise; epsilon is that of one call",
    )
    sub.add_argument(
        "--participation",
        metavar="MODULE:FUNCTION",
        help=(
            "function of a seed that returns one of dpsum's participations; epsilon is"
            " that of all rounds, and the audit tests its cohorts"
        ),
    )
    sub.add_argument(
        "--adjacency",
        default="add-or-remove",
        help="add-or-remove, zero-out or replace-one; default %(default)s",
    )
    sub.add_argument(
        "--rows",
        type=_UNITS,
        help=(
            "number of contributions in every call, if the function needs a fixed"
            " number"
        ),
    )
    sub.add_argument(
        "--calls",
        type=_CALLS,
        help="largest number of calls of each of the three attacks",
    )
    sub.add_argument(
        "--leak",
        type=_LEAK,
        default=2**0.5,
        help="detect noise that is too small by this factor; default 1.41",
    )
    sub.add_argument(
        "--power",
        type=_CHANCE,
        default=0.95,
        help="probability of detecting such noise; default %(default)s",
    )
    sub.add_argument(
        "--false-alarm",
        type=_CHANCE,
        default=1e-3,
        help="probability of refuting a correct mechanism; default %(default)s",
    )
    sub.add_argument("--seed", type=_SEED, default=0)
    at_most(sub, "the lower bound")
    _add_check(command, at_most)
    return parser


def _add_check(command: Callable[..., Any], at_most: Callable[..., None]) -> None:
    sub = command(
        "check",
        "run a training script unedited, and report what is proven of it",
    )
    sub.usage = "python -m dpwatch check [options] -- python train.py ..."
    sub.add_argument(
        "--delta",
        type=_DELTA,
        help="delta of the account; default: the script's own, else 1e-5",
    )
    sub.add_argument(
        "--units-public",
        action="store_true",
        help="the number of records or clients is public",
    )
    sub.add_argument(
        "--metrics",
        choices=("released", "kept"),
        default="released",
        help="kept: only the server sees clients' metrics; default %(default)s",
    )
    sub.add_argument(
        "--cohorts",
        choices=("secret", "known"),
        default="secret",
        help="known: who sees the models may know the cohorts; default %(default)s",
    )
    sub.add_argument(
        "--audit-calls",
        type=_number(0, 1e9, whole=True),
        default=200,
        metavar="N",
        help="largest number of calls of each attack; 0: no audit; default %(default)s",
    )
    sub.add_argument(
        "--audit-any-size",
        action="store_true",
        help="audit a release of more than 20,000 coordinates too",
    )
    sub.add_argument(
        "--keep",
        metavar="FOLDER",
        help="new folder for the ledgers and observations; default: none is kept",
    )
    at_most(sub, "the proven epsilon")
    sub.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; see `_EXITS`."""
    write_utf8()
    return written(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except DpsumError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
