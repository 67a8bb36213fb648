"""`dpfedbench data`: the real data sets, and the files that a preset lacks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpfedbench.config.yaml_files import read_file
from dpfedbench.data.sources import ENVIRONMENT, local_folder
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import (
    Configuration,
    overlaid,
    read_shipped,
)
from dpfedbench.experiments.expand import make_plan
from dpfedbench.methods_table import format_columns
from dpfedbench.real_data import COLUMNS, describe_places, find_missing


def main(words: Sequence[str], config: Path) -> int:
    """Print the table of real data sets, or check the files of a preset.

    Args:
        words: the arguments after `data`.
        config: the folder `config` of the benchmark.

    Returns:
        1 if a file is missing that is not downloaded, else 0.

    Raises:
        BenchError: there is no such preset, or the configuration is refused.
    """
    parser = argparse.ArgumentParser(
        "dpfedbench data", description="List the real data sets, or check a preset."
    )
    parser.add_argument(
        "--check",
        metavar="PRESET",
        nargs="?",
        const="",
        help="name each file that the preset's runs need and the local data folder"
        f" ({ENVIRONMENT}) lacks; without a name: the default run",
    )
    parser.add_argument(
        "--configfile", nargs="+", default=[], help="files laid over the preset"
    )
    known = parser.parse_args(words)
    if known.check is None:
        for line in format_columns(COLUMNS, describe_places()):
            print(line)
        return 0
    configuration = _read(known.check, known.configfile, config)
    local = local_folder(configuration.data.local_dir)
    names = {run.dataset for run in make_plan(configuration).runs.values()}
    own_options = {
        name: dataset.options
        for name, dataset in configuration.datasets.items()
        if dataset is not None
    }
    missing = list(find_missing(names, local, own_options))
    for line, is_downloaded in missing:
        print(line + (": the run downloads it" if is_downloaded else ""))
    source = f"the local data folder {local}" if local else f"no {ENVIRONMENT}"
    print(f"{len(names)} data sets, {len(missing)} missing files; {source}")
    return int(not all(is_downloaded for _, is_downloaded in missing))


def _read(preset: str, files: Sequence[str], config: Path) -> Configuration:
    """Return the configuration of a preset, with further files over it."""
    preset_file = config / "presets" / f"{preset}.yaml"
    if preset and not preset_file.is_file():
        presets = sorted(path.stem for path in preset_file.parent.glob("*.yaml"))
        raise BenchError(
            f"there is no preset {preset!r}: take one of {', '.join(presets)}"
        )
    shipped = read_shipped(config, preset)
    return Configuration.read(overlaid(shipped, *map(read_file, files)))
