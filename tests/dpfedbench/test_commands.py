"""Commands of README and docs parse, and the files, keys and targets in them exist.

Snakemake takes seconds to start. So these tests read the commands with Snakemake's own
parser and compare them with the plan. One real dry run confirms the comparison.
"""

import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.cli import parse_args

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan
from tests.calls import Snakemake
from tests.shipped import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
RULES = {
    name
    for path in (ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk"))
    for name in re.findall(r"^rule (\w+)", path.read_text(), flags=re.MULTILINE)
}
# Placeholders, which the reader replaces.
BLANK = re.compile(r"…|\.\.\.|\b[A-Z]{3,}\b|\$\w+")


def code_lines(text: str) -> list[str]:
    """Return the lines of a page's shell blocks, and its code within sentences."""
    flags = re.MULTILINE | re.DOTALL
    lines = []
    for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```$", text, flags=flags):
        lines += [line.partition("  #")[0] for line in block.splitlines()]
    sentences = re.sub(r"^```.*?^```$", "", text, flags=flags)
    for code in re.findall(r"`([^`]+)`", sentences):
        lines.append(" ".join(code.split()))
    return lines


@functools.cache
def page_commands() -> list[tuple[str, str]]:
    """Return each call of snakemake, pytest or a script, as (page, command)."""
    commands = []
    for page in PAGES:
        for line in code_lines(page.read_text(encoding="utf-8")):
            for command in re.split(r"&&|;", line):
                words = command.split()
                if "snakemake" in words[:6] or words[:2] == ["uv", "run"]:
                    commands.append((page.name, command.strip()))
    return list(dict.fromkeys(commands))


def words_of(command: str) -> list[str]:
    """Return the program and its arguments, without variables and without `uv run`."""
    words = [
        word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", word)
    ]
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words[0].startswith("--"):
            words = words[1 if words[0].startswith("--no-") else 2 :]
    return words


@functools.cache
def files_of_pages() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the YAML files that the pages let their reader write.

    Those of config/experiments are laid over each other; the others come by name.
    """
    experiments = []
    files = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, block in re.findall(
            r"^```yaml (\S+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
        ):
            if name.startswith("config/experiments/"):
                experiments.append(yaml.safe_load(block))
            else:
                files[name] = yaml.safe_load(block)
    return overlaid(*experiments), files


@functools.cache
def planned(
    files: tuple[str, ...], values: tuple[str, ...]
) -> tuple[Configuration, Plan]:
    """Return the configuration and plan of the default run with the pages' experiments.

    `files` and `values` are those of --configfile and --config.
    """
    experiments, page_files = files_of_pages()
    overlays = [
        page_files[file] if file in page_files else parsed(ROOT / file)
        for file in files
    ]
    stated: dict[str, Any] = {}
    for value in values:
        key, _, text = value.partition("=")
        stated[key] = yaml.safe_load(text)
    assert stated.pop("deep", "no") in (True, False, "yes", "no")
    if stated.pop("experiments_folder", None):
        overlays += list(page_files.values())
    shipped = sorted((ROOT / "config" / "experiments").glob("*.yaml"))
    layers = overlaid(
        parsed(ROOT / "config" / "config.yaml"),
        *map(parsed, shipped),
        experiments,
        *overlays,
        stated,
    )
    configuration = Configuration.read(layers)
    # The pages' methods exist only in the tests of those pages.
    without_methods = {
        name: paper
        for name, paper in configuration.experiments.items()
        if name not in ("dp-fedavgm", "dp-anil", "resnet9", "fed-rep")
    }
    update = {"experiments": without_methods}
    return configuration, make_plan(configuration.model_copy(update=update))


TABLE_FILES = (("tables", "csv"), ("tables", "md"))
FIGURE_FILES = (("figures", "csv"), ("figures", "png"), ("export", "pdf"))
REPORT_ENTRIES = (
    "tables",
    "figures",
    "export",
    "runs",
    "audits",
    "index.html",
    "results.zip",
)


def check(command: str) -> None:
    """Fail if an option, file, key or target of a snakemake command does not exist."""
    _, arguments = parse_args(words_of(command)[1:])
    for profile in arguments.profile or ():
        assert (ROOT / profile / "config.yaml").is_file(), profile
    files = tuple(map(str, arguments.configfile or ()))
    configuration, plan = planned(files, tuple(arguments.config or ()))
    report = f"results/{configuration.preset}" if configuration.preset else "results"
    papers = {
        paper.replace("-", "_")
        for paper, paper_of in configuration.experiments.items()
        if paper_of
    }
    outputs = set()
    for (paper, name), item in plan.items.items():
        for folder, kind in TABLE_FILES if item.kind == "table" else FIGURE_FILES:
            outputs.add(f"{report}/{folder}/{paper}/{name}.{kind}")
    for target in arguments.targets:
        if BLANK.search(target) or target in papers | RULES:
            continue
        assert target.startswith(f"{report}/"), target
        path = target.removeprefix(f"{report}/")
        assert path.partition("/")[0] in REPORT_ENTRIES, target
        output = re.fullmatch(r"(tables|figures|export)/[^/]+/(.+)\.\w+", path)
        if output and output[2] not in ("privacy", "answer"):
            assert target in outputs, target


def test_commands_of_the_pages_are_found() -> None:
    pages = {page for page, _ in page_commands()}
    assert {"README.md", "CONTRIBUTING.md", "recipes.md", "clusters.md"} <= pages
    assert len(page_commands()) > 25


@pytest.mark.parametrize(("page", "command"), page_commands())
def test_command_parses_and_its_files_and_targets_exist(
    page: str, command: str
) -> None:
    words = words_of(command)
    if words[0] == "snakemake":
        check(command)
        return
    path = re.compile(r"[\w./-]+\.(py|yaml)|tests(/\w+)*|workflow|Snakefile")
    for word in words[1:]:
        if path.fullmatch(word) and not BLANK.search(word):
            assert (ROOT / word).exists(), f"{page}: {word} does not exist"


@pytest.mark.parametrize(
    "arguments",
    [
        "results/tables/dp-fedmeta/table22.csv",
        "dp_fedmetta",
        "--config 'machine={kernel: off}'",
        "--profile profiles/slurn",
        "--configfile config/presets/reel.yaml",
    ],
)
def test_command_that_cannot_run_is_found(arguments: str) -> None:
    with pytest.raises((AssertionError, BenchError, FileNotFoundError, SystemExit)):
        check(f"snakemake --cores all {arguments}")


DRY_PAGES = ("README.md", "recipes.md", "measurements.md", "results.md", "clusters.md")


def test_command_check_agrees_with_a_dry_run(
    tmp_path: Path, call_snakemake: Snakemake
) -> None:
    """Take the first command with a preset that needs no further file."""
    command = next(
        command
        for page, command in page_commands()
        if page in DRY_PAGES
        and " --configfile config/presets/smoke" in command
        and not BLANK.search(command.partition("snakemake")[2])
        and not re.search(r"\bmine\b|--profile|--use-conda|--report", command)
    )
    check(command)
    words = [
        str(ROOT / word) if word.startswith("config/") else word
        for word in words_of(command)[1:]
    ]
    start = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
    quiet = ["--dry-run", "--quiet", "rules"]
    done = call_snakemake(*start, *quiet, *words, folder=Path.cwd())
    assert done.returncode == 0, (command, done.stderr)
