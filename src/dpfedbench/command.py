"""The command `dpfedbench`: runs the packaged workflow with the options of Snakemake.

dpfedbench run FILE.yaml    makes the experiments of a file, and no other experiment
dpfedbench run [--preset NAME]    makes every table and figure of all papers
dpfedbench compare A B      prints what differs between two archives or results folders
dpfedbench methods          prints a table of all methods: unit, data, messages, state
dpfedbench data             prints the real data sets: folders, licences, sources
dpfedbench data --check [PRESET]                      names the files that it lacks
dpfedbench where            prints the path of the Snakefile, for `module` in another
"""

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from dpfedbench.errors import BenchError
from dpsum.terminal import write_utf8, written

PACKAGE = Path(__file__).resolve().parent
USAGE = (
    "usage: dpfedbench run [FILE.yaml ...] [--preset NAME] [targets and options of"
    " Snakemake]; dpfedbench run --help explains it. dpfedbench where prints the place"
    " of its Snakefile; compare A B prints what differs between two results.zip or"
    " results folders; methods lists the methods; data the real data sets; and data"
    " --check PRESET the files that a preset lacks"
)
_RUN_USAGE = (
    "dpfedbench run [FILE.yaml ...] [--preset NAME] [--configfile FILE ...]"
    " [--config KEY=VALUE ...] [targets and options of Snakemake]"
)
_RUN_HELP = """\
Run experiments; results go to the folder results/ here.

  dpfedbench run mine.yaml              the experiments that mine.yaml makes, alone: tables,
                                        figures, and in results/experiments/NAME/ page,
                                        data frames and archive
  dpfedbench run mine.yaml --dry-run    the jobs of that, and the hours that they take
  dpfedbench run mine.yaml cost         the hours of its trainings, timed on this machine
  dpfedbench run --preset smoke         every table and figure of all papers, at the sizes
                                        of a preset; without --preset at small sizes
"""


def workflow_folder() -> Path:
    """Return the folder of the Snakefile, in an installed package or the repository."""
    inside = PACKAGE / "workflow"
    return inside if (inside / "Snakefile").is_file() else PACKAGE.parents[1]


def snakemake_words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of Snakemake for the arguments of `dpfedbench run`.

    Raises:
        BenchError: the command is not `run`.
        SystemExit: there is no such preset, or `--help` was printed.
    """
    if not arguments or arguments[0] != "run":
        raise BenchError(USAGE)
    root = workflow_folder()
    presets = {path.stem: path for path in (root / "config/presets").glob("*.yaml")}
    known, words = _run_parser(presets).parse_known_args(arguments[1:])
    # --config takes every word up to the next option, targets and files too.
    values = [word for word in known.config if "=" in word]
    words = [word for word in known.config if "=" not in word] + words
    experiments = [word for word in words if _is_experiment_file(word)]
    targets_and_options = [word for word in words if word not in experiments]
    files = [*experiments, *known.configfile]
    if known.preset:
        files.insert(0, str(presets[known.preset]))
    if experiments:
        values.append("only=own")
    # Each of these options takes every word up to the next option.
    return [
        *(["--configfile", *files] if files else []),
        *(["--config", *values] if values else []),
        "--snakefile",
        str(root / "Snakefile"),
        *targets_and_options,
    ]


def _run_parser(presets: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser of the options of `dpfedbench run` that are not Snakemake's."""
    parser = argparse.ArgumentParser(
        usage=_RUN_USAGE,
        description=_RUN_HELP,
        epilog="All other words are Snakemake's: snakemake --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--preset",
        choices=sorted(presets),
        help="sizes and data sets of all experiments",
    )
    parser.add_argument(
        "--configfile",
        "--configfiles",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="further configuration, laid over the files before it",
    )
    parser.add_argument(
        "--config",
        "-C",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="single values of the configuration, laid over all files",
    )
    return parser


def _is_experiment_file(word: str) -> bool:
    """Whether a word is a configuration file, and no target or option of Snakemake."""
    is_yaml = word.endswith((".yaml", ".yml")) and "=" not in word
    return is_yaml and not word.startswith(("-", "results/"))


def _compare(given: Sequence[str]) -> int:
    """Print the differences of two archives or results folders; return 1 if any."""
    if len(given) != 2:
        raise BenchError(USAGE)
    from dpfedbench.verification import compare

    lines = list(compare(*given))
    print("\n".join(lines) or "no cell differs beyond its interval")
    return int(bool(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Replace this process by Snakemake; return the exit code if that fails."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    write_utf8()
    return written(lambda: _run(words))


def _run(given: Sequence[str]) -> int:
    try:
        if list(given) == ["where"]:
            print(workflow_folder() / "Snakefile")
            return 0
        if given[:1] == ["compare"]:
            return _compare(given[1:])
        if list(given) == ["methods"]:
            from dpfedbench.methods_table import print_methods

            print_methods(workflow_folder() / "config")
            return 0
        if given[:1] == ["data"]:
            from dpfedbench import data_command

            return data_command.main(given[1:], workflow_folder() / "config")
        words = snakemake_words(given)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])
