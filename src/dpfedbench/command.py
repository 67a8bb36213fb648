"""The command `dpfedbench`: runs the packaged workflow with the options of Snakemake.

dpfedbench run [--preset NAME] [targets and options of Snakemake]
dpfedbench histories tensorboard FOLDER [RESULTS]     logs finished runs for TensorBoard
dpfedbench histories mlflow EXPERIMENT [RESULTS]      the same for MLflow
dpfedbench compare A B      prints what differs between two archives or results folders
dpfedbench methods          prints a table of all methods: unit, data, messages, state
dpfedbench data             prints the real data sets: folders, licences, sources
dpfedbench data --check [PRESET]                      names the files that it lacks
dpfedbench where            prints the path of the Snakefile, for `module` in another
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dpfedbench.errors import BenchError
from dpsum.terminal import write_utf8, written

PACKAGE = Path(__file__).resolve().parent
USAGE = (
    "usage: dpfedbench run [--preset NAME] [targets and options of Snakemake]; results"
    " go to the folder results/ here. For example: dpfedbench run --preset smoke"
    " --dry-run. dpfedbench where prints the place of its Snakefile; dpfedbench"
    " histories tensorboard FOLDER [RESULTS] and histories mlflow EXPERIMENT [RESULTS]"
    " log finished runs; compare A B prints what differs between two results.zip or"
    " results folders; methods lists the methods; data the real data sets; and data"
    " --check PRESET the files that a preset lacks"
)


def workflow_folder() -> Path:
    """Return the folder of the Snakefile, in an installed package or the repository."""
    inside = PACKAGE / "workflow"
    return inside if (inside / "Snakefile").is_file() else PACKAGE.parents[1]


def snakemake_words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of Snakemake for the arguments of `dpfedbench run`.

    Raises:
        BenchError: the command is not `run`.
        SystemExit: there is no such preset.
    """
    if not arguments or arguments[0] != "run":
        raise BenchError(USAGE)
    root = workflow_folder()
    presets = {path.stem: path for path in (root / "config/presets").glob("*.yaml")}
    parser = argparse.ArgumentParser("dpfedbench run", add_help=False)
    parser.add_argument("--preset", choices=sorted(presets))
    parser.add_argument(
        "--configfile", "--configfiles", nargs="+", action="extend", default=[]
    )
    known, words = parser.parse_known_args(arguments[1:])
    files = known.configfile
    if known.preset:
        files = [str(presets[known.preset]), *files]
    # --configfile takes every argument up to the next option, so that it has to stand
    # before the targets.
    return [
        *(["--configfile", *files] if files else []),
        "--snakefile",
        str(root / "Snakefile"),
        *words,
    ]


def _histories(given: Sequence[str]) -> int:
    if len(given) not in (2, 3) or given[0] not in ("tensorboard", "mlflow"):
        raise BenchError(USAGE)
    from dpfedbench.experiments import experiment_trackers

    log = (
        experiment_trackers.to_tensorboard
        if given[0] == "tensorboard"
        else experiment_trackers.to_mlflow
    )
    print(
        f"{log(given[2] if len(given) == 3 else 'results', given[1])} runs logged to"
        f" {given[1]}"
    )
    return 0


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
        if given[:1] == ["histories"]:
            return _histories(given[1:])
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
