"""The command line: python -m dpsum account | plan | compare | audit. What the commands do is in `shell`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dpsum import shell
from dpsum.errors import DpsumError

_EXITS = """exit codes: 0, done, and every limit that was named is kept; 1, an error, told in one line on standard
error; 2, the command was not understood; 3, the answer is no: epsilon is above --at-most, the ledgers are of different
mechanisms, or the audit refutes what was declared."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dpsum", description="What a private training guarantees, and whether it does.", epilog=_EXITS
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=summary, description=summary, epilog=_EXITS)
        parser.set_defaults(run=getattr(shell, name))
        parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output, no table")
        return parser

    def limited(parser: argparse.ArgumentParser, of: str) -> None:
        parser.add_argument("--at-most", type=float, metavar="EPSILON", help=f"exit with 3 where {of} is above it")

    def exported(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--badge", action="store_true", help="print a line of Markdown for a model card")
        parser.add_argument("--mlflow", action="store_true", help="log metrics to MLflow, as its own environment says")
        parser.add_argument("--tensorboard", metavar="FOLDER", help="log metrics to TensorBoard")

    one = command("account", "epsilon of a ledger, under each profile")
    one.add_argument("ledger", metavar="LEDGER")
    one.add_argument("--delta", type=float, default=1e-5, help="of epsilon; %(default)s if not given")
    one.add_argument("--audit", metavar="FILE", help="an audit's JSON, to stand beside the account in what is exported")
    limited(one, "the epsilon that holds")
    exported(one)

    one = command("plan", "the noise multiplier for an epsilon, or epsilon for a noise multiplier, by participation")
    one.add_argument("--units", type=int, required=True, help="clients or records that cohorts are drawn from")
    one.add_argument("--cohort", type=float, required=True, help="units in a round, or their expected number")
    one.add_argument("--rounds", type=int, required=True)
    one.add_argument("--delta", type=float, default=1e-5, help="of epsilon; %(default)s if not given")
    wanted = one.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--epsilon", type=float, help="to be kept: find the least noise multiplier")
    wanted.add_argument("--noise-multiplier", type=float, metavar="Z", help="find epsilon")
    one.add_argument(
        "--kind", action="append", metavar="KIND", help="of participation; may be repeated; all if missing"
    )
    one.add_argument("--set", action="append", metavar="KEY=VALUE", help="what else a kind of participation takes")
    limited(one, "epsilon of any participation that is planned")

    one = command("compare", "two ledgers side by side")
    one.add_argument("ledger", metavar="LEDGER")
    one.add_argument("other", metavar="LEDGER")
    one.add_argument("--delta", type=float, default=1e-5, help="of epsilon; %(default)s if not given")

    one = command(
        "audit", "a lower bound on epsilon of a function of contributions [n, d] that returns what is released"
    )
    one.add_argument("release", metavar="MODULE:FUNCTION", help="looked for in the current folder too")
    one.add_argument("--dimension", type=int, required=True, metavar="D", help="coordinates of a contribution")
    declared = one.add_mutually_exclusive_group()
    declared.add_argument("--epsilon", type=float, help="declared, at --delta")
    declared.add_argument("--noise-multiplier", type=float, metavar="Z", help="declared: noise over sensitivity")
    one.add_argument("--delta", type=float, default=1e-5, help="of epsilon; %(default)s if not given")
    one.add_argument("--any-mechanism", action="store_true", help="noise need not be Gaussian; epsilon is of one call")
    one.add_argument("--kind", help="of participation, with --units, --cohort and --rounds: epsilon is of all rounds")
    one.add_argument(
        "--participation",
        metavar="MODULE:FUNCTION",
        help="of a seed, makes one of dpsum's participations, which is tried",
    )
    one.add_argument("--units", type=int)
    one.add_argument("--cohort", type=float)
    one.add_argument("--rounds", type=int)
    one.add_argument("--set", action="append", metavar="KEY=VALUE", help="what else the kind of participation takes")
    one.add_argument("--adjacency", default="add-or-remove", help="or zero-out, or replace-one")
    one.add_argument("--rows", type=int, help="of every call, where it has to be a certain number")
    one.add_argument("--calls", type=int, help="of each of the three attacks at most")
    one.add_argument("--leak", type=float, default=2**0.5, help="tell so many times less noise (1.41 if not given) ...")
    one.add_argument("--power", type=float, default=0.95, help="... with this chance (%(default)s if not given)")
    one.add_argument("--false-alarm", type=float, default=1e-3, help="chance to refute right code; %(default)s")
    one.add_argument("--seed", type=int, default=0)
    limited(one, "the lower bound")
    exported(one)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; see `_EXITS` for what is returned."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except DpsumError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
