"""Provenance: revision and the command. `use_conda.py` asks for the versions."""

import subprocess

import pytest
from snakemake.cli import get_argument_parser

from dpfedbench.config.yaml_files import dropped_words
from workflow_jobs.provenance import revision


def test_revision_tells_a_clean_tree_from_a_changed_one(tmp_path):
    assert revision(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    clean = revision(tmp_path)
    assert len(clean) == 40
    (tmp_path / "new").touch()
    assert revision(tmp_path) == f"{clean}+changes"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--configfile a.yaml b.yaml --configfile c.yaml", [["a.yaml", "b.yaml"]]),
        ("--configfile=a.yaml --cores all --configfiles b.yaml", [["a.yaml"]]),
        ("--config x=1 y=2 -C z=3", [["x=1", "y=2"]]),
        ("--config x=1 --configfile a.yaml", []),
    ],
)
def test_dropped_words_are_those_that_snakemake_ignores(line, expected):
    """Snakemake's parser uses the last of repeated options."""
    assert [words for _, words in dropped_words(line.split())] == expected
    parsed = get_argument_parser().parse_args(line.split())
    read_words = {str(path) for path in parsed.configfile or []}
    read_words |= {str(value) for value in parsed.config or []}
    for words in expected:
        assert read_words.isdisjoint(words)
