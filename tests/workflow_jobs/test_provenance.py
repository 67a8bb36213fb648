"""Provenance: versions and revision."""

import ast
import importlib.metadata
import site
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake.cli import get_argument_parser

from dpfedbench import __version__
from dpfedbench.files import read_json, write_json
from dpfedbench.settings.yaml_files import dropped_words
from workflow_jobs.provenance import provenance, revision, versions

ROOT = Path(__file__).resolve().parents[2]


def test_versions_are_of_the_direct_requirements(tmp_path: Path) -> None:
    project = '[project]\ndependencies = ["pytest>=8", "no-such-package[x]==1"]\n'
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    assert versions(tmp_path) == {
        "dpfedbench": __version__,
        "pytest": pytest.__version__,
        "no-such-package": "not installed",
    }
    assert versions(tmp_path / "elsewhere") == {}


def test_a_rules_environment_has_versions() -> None:
    """In it the package is not installed: -S reads no .pth."""
    places = [str(ROOT / "src"), *site.getsitepackages()]
    code = (
        f"import sys; sys.path[:0] = {places!r}; from workflow_jobs.provenance"
        " import versions; "
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}print(versions({str(ROOT)!r}))"],
        capture_output=True,
    )
    found = ast.literal_eval(done.stdout.decode())
    assert (
        found["torch"].split("+")[0]
        == importlib.metadata.version("torch").split("+")[0]
    )
    assert found["dpfedbench"][0].isdigit() and "not installed" not in found.values()


def test_revision_tells_a_clean_tree_from_a_changed_one(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    commit = [
        "git",
        "-C",
        str(tmp_path),
        *identity,
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "first",
    ]
    subprocess.run(commit, check=True)
    clean = revision(tmp_path)
    assert clean is not None and len(clean) == 40
    (tmp_path / "new").touch()
    assert revision(tmp_path) == f"{clean}+changes"


def test_provenance_can_be_written(tmp_path: Path) -> None:
    files = ["config/presets/smoke.yaml", "mine.yaml"]
    made = provenance(tmp_path, "snakemake", configuration_files=files)
    write_json(tmp_path / "provenance.json", made)
    read = read_json(tmp_path / "provenance.json")
    assert (read["command"], read["configuration_files"]) == ("snakemake", files)


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("all --configfile a.yaml b.yaml --cores all", []),
        ("--configfile a.yaml b.yaml --configfile c.yaml", [["a.yaml", "b.yaml"]]),
        ("--configfile=a.yaml --cores all --configfiles b.yaml", [["a.yaml"]]),
        ("--configfile a --configfile b --configfile c", [["a"], ["b"]]),
        ("--config x=1 y=2 -C z=3", [["x=1", "y=2"]]),
        ("--config x=1 --configfile a.yaml", []),
        ("--cores all --quiet rules", []),
    ],
)
def test_repeated_options_drop_all_words_but_the_last_ones(
    line: str, dropped: list[list[str]]
) -> None:
    """By Snakemake's own parser, which keeps the words of the last option."""
    found = dropped_words(line.split())
    assert [words for _, words in found] == dropped
    parsed = get_argument_parser().parse_args(line.split())
    kept = {
        "--configfile": list(map(str, parsed.configfile or [])),
        "--config": [str(value) for value in parsed.config or []],
    }
    for option, words in found:
        assert not {*words} & {*kept[option]}
