"""Faults of a beginner: each is one line, which names the file that it is in and says
what to do; an error of the user's own code is Python's traceback.

Each is made in a folder outside the repository, beside a right experiment, and met as a
user meets it: by a dry run.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipped import without_others

Call = Callable[..., subprocess.CompletedProcess[str]]
RIGHT = without_others("""
plugins: [mine]
experiments:
  mine:
    title: Mine
    run: {dataset: glyphs, clients: {count: 20}, participation: {cohort: 10, rounds: 2}}
    tasks: {one: {}}
    tables:
      table1: {title: t, tasks: [one], seeds: [0], series: {a: {method: METHOD}}}
""")
METHOD = """
from typing import ClassVar
from dpfedbench.papers.shared import ClientLevelMethod
from dpfedbench.method import Method
from dpfedbench.parts.client_updates.maml import Maml


class Mine(ClientLevelMethod):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
    client_update: Maml = Maml()
"""
RULE = """
from typing import ClassVar
from dpsum.clipping import CohortRule, Seen, State


class Mine(CohortRule):
    kind: ClassVar[str] = "mine"

    def observe(self, state: State, seen: Seen) -> None:
        state["threshold"] *= 0.5
"""
KIND = '    kind: ClassVar[str] = "mine"\n'


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("Using", "Config file"))
    ]


def dry_run(snakemake: Call, folder: Path, *more: str) -> list[str]:
    done = snakemake(
        "--dry-run", "--quiet", "rules", "--configfile", *more, directory=folder
    )
    assert done.returncode == 1, done.stdout
    return lines(done)


def test_a_fault_of_yaml(
    snakemake: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file that --configfile names, which Snakemake reads before the Snakefile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.yaml").write_text("seeds: [0\nrun: {}\n", encoding="utf-8")
    done = snakemake("--dry-run", "--configfile", "faulty.yaml")
    (line,) = lines(done)
    assert done.returncode == 1
    assert re.match(r"configuration: faulty\.yaml is not YAML: .* line 2", line), line


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            f"{METHOD}\n    def check(self):\n        super().check()\n        1 / 0\n",
            15,
            "ZeroDivisionError: division by zero",
        ),
        (f"{METHOD}\n    def f(:\n", 13, "SyntaxError: invalid syntax"),
    ],
)
def test_plugin_error_in_a_plan_is_shown_as_a_traceback(
    snakemake: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    line: int,
    said: str,
) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    method = "mine" if METHOD in text or "ClientLevelMethod" in text else "dp-agr"
    configuration = RIGHT.replace("METHOD", method)
    (tmp_path / "mine.yaml").write_text(configuration, encoding="utf-8")
    shown = dry_run(snakemake, tmp_path, str(tmp_path / "mine.yaml"))
    first = shown.index("Traceback (most recent call last):")
    assert re.match(said, shown[-1]), shown[-1]
    place = f'  File "{tmp_path / "mine.py"}", line {line}'
    assert any(entry.startswith(place) for entry in shown[first:]), shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (changed(RULE, KIND, ""), "kind is .*mine.*"),
        ("def red(local, download_dir): ...\n", "the plugin mine .* defines nothing"),
    ],
)
def test_plugin_that_would_be_overlooked_is_one_line(
    snakemake: Call, tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    method = "mine" if text and "ClientLevelMethod" in text else "dp-agr"
    configuration = RIGHT.replace("METHOD", method)
    if text and "CohortRule" in text:
        configuration = configuration.replace(
            "rounds: 2}", "rounds: 2}, clipping: mine"
        )
    (tmp_path / "mine.yaml").write_text(configuration, encoding="utf-8")
    (line,) = dry_run(snakemake, tmp_path, str(tmp_path / "mine.yaml"))
    assert re.match(f"configuration: .*{said}", line), line


@pytest.mark.parametrize(
    ("old", "new", "said", "at"),
    [
        ("{count: 20}", "{cuont: 20}", "nearest known key is .*count", "cuont"),
        ("cohort: 10", "cohort: 30", "lower it", "table1:"),  # of the whole item
    ],
)
def test_a_fault_of_a_key_names_the_file_and_the_line(
    snakemake: Call, tmp_path: Path, old: str, new: str, said: str, at: str
) -> None:
    text = (
        changed(RIGHT, old, new)
        .replace("METHOD", "dp-agr")
        .replace("plugins: [mine]\n", "")
    )
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    (shown,) = dry_run(snakemake, tmp_path, str(tmp_path / "mine.yaml"))
    line = text[: text.index(at)].count("\n") + 1
    assert re.match(
        rf"configuration: .*{said}.* \[{tmp_path}/mine\.yaml, line {line}\]$", shown
    ), shown


def test_the_right_ones_are_taken(snakemake: Call, tmp_path: Path) -> None:
    """What the faults above were made of is no fault."""
    text = METHOD + RULE.replace("class Mine", "class Other")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(
        RIGHT.replace("METHOD", "mine"), encoding="utf-8"
    )
    done = snakemake(
        "--dry-run", "--quiet", "rules", "--configfile", str(tmp_path / "mine.yaml")
    )
    assert done.returncode == 0, done.stderr
