"""Every command that README and docs show can be called: it parses, and what it names
is there.

Snakemake takes seconds to start, so most commands are read by its own parser and
checked against the plan here; that this says what a dry run says is held by a few real
ones.
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
# What the reader puts something of his own in the place of.
BLANK = re.compile(r"…|\.\.\.|\b[A-Z]{3,}\b|\$\w+")


def shown() -> list[tuple[str, str]]:
    """(page, command) of each call of snakemake, pytest or a script in a block or in a
    line of text.
    """
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [
            block
            for _, block in re.findall(
                r"^```(bash|sh)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
            )
        ]
        lines = [
            line.partition("  #")[0] for block in blocks for line in block.splitlines()
        ]
        inline = re.findall(
            r"`([^`]+)`",
            re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL),
        )
        for line in (*lines, *(" ".join(code.split()) for code in inline)):
            for part in re.split(r"&&|;", line):
                words = part.split()
                if "snakemake" in words[:6] or words[:2] == ["uv", "run"]:
                    found.append((page.name, part.strip()))
    return list(dict.fromkeys(found))


def words_of(command: str) -> list[str]:
    """The program and its arguments, without variables that are set before and what
    calls it.
    """
    words = [
        word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", word)
    ]
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words[0].startswith("--"):
            words = words[1 if words[0].startswith("--no-") else 2 :]
    return words


@functools.cache
def printed() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The files that pages tell their reader to write: of the repository's experiments,
    and others by name.
    """
    own = []
    others = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, block in re.findall(
            r"^```yaml (\S+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
        ):
            if name.startswith("config/experiments/"):
                own.append(yaml.safe_load(block))
            else:
                others[name] = yaml.safe_load(block)
    return overlaid(*own), others


@functools.cache
def planned(
    files: tuple[str, ...], values: tuple[str, ...]
) -> tuple[Configuration, Plan]:
    """The plan of the default run and the pages' own experiments, with files and values
    over it.
    """
    own, others = printed()
    over = [others[file] if file in others else parsed(ROOT / file) for file in files]
    given: dict[str, Any] = {}
    for value in values:
        key, _, text = value.partition("=")
        given[key] = yaml.safe_load(text)
    assert given.pop("deep", "no") in (True, False, "yes", "no")
    if given.pop("experiments_folder", None):
        over += list(others.values())
    experiments = sorted((ROOT / "config" / "experiments").glob("*.yaml"))
    configuration = overlaid(
        parsed(ROOT / "config" / "config.yaml"),
        *map(parsed, experiments),
        own,
        *over,
        given,
    )
    found = Configuration.read(configuration)
    # The methods of the pages are made by their tests.
    kept = {
        name: paper
        for name, paper in found.experiments.items()
        if name not in ("dp-fedavgm", "dp-anil", "resnet9", "fed-rep")
    }
    return found, make_plan(found.model_copy(update={"experiments": kept}))


TABLE_FILES = (("tables", "csv"), ("tables", "md"))
FIGURE_FILES = (("figures", "csv"), ("figures", "png"), ("export", "pdf"))


def check(command: str) -> None:
    """Fail where a command of the workflow names an option, file, key or target that
    there is not.
    """
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
    tables = {place: item.kind == "table" for place, item in plan.items.items()}
    targets = [target for target in arguments.targets if not BLANK.search(target)]
    made = {
        f"{report}/{folder}/{paper}/{name}.{kind}"
        for (paper, name), is_table in tables.items()
        for folder, kind in (TABLE_FILES if is_table else FIGURE_FILES)
    }
    for target in targets:
        item = re.fullmatch(
            rf"{report}/(tables|figures|export)/[^/]+/(.+)\.\w+", target
        )
        if item and item[2] not in ("privacy", "answer"):
            assert target in made, target
        inside = target.startswith(f"{report}/") and target.split("/")[
            len(report.split("/"))
        ] in (
            "tables",
            "figures",
            "export",
            "runs",
            "audits",
            "index.html",
            "results.zip",
        )
        assert target in papers | RULES or inside, target


def test_commands_are_found() -> None:
    pages = {page for page, _ in shown()}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "recipes.md",
        "clusters.md",
    } <= pages
    assert len(shown()) > 25


@pytest.mark.parametrize(("page", "command"), shown())
def test_a_command_parses_and_names_what_there_is(page: str, command: str) -> None:
    words = words_of(command)
    if words[0] == "snakemake":
        check(command)
        return
    for word in words[1:]:
        if re.fullmatch(
            r"[\w./-]+\.(py|yaml)|tests(/\w+)*|workflow|Snakefile", word
        ) and not BLANK.search(word):
            assert (ROOT / word).exists(), f"{page}: {word} is not there"


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
def test_a_command_that_cannot_run_is_found(arguments: str) -> None:
    with pytest.raises((AssertionError, BenchError, FileNotFoundError, SystemExit)):
        check(f"snakemake --cores all {arguments}")


DRY_PAGES = ("README.md", "recipes.md", "measurements.md", "results.md", "clusters.md")


def test_a_dry_run_agrees(tmp_path: Path, call_snakemake: Snakemake) -> None:
    """The first command, of the repository as it is, that names a preset."""
    command = next(
        command
        for page, command in shown()
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
