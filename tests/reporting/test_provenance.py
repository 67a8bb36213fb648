"""Provenance: versions and revision."""

import subprocess
from pathlib import Path

from dpfedbench.files import read_json, write_json
from dpfedbench.reporting.provenance import provenance, revision, versions


def test_versions_are_of_the_direct_requirements() -> None:
    found = versions("pytest")
    assert {"pytest", "pluggy"} <= set(found) and found["pluggy"][0].isdigit()
    assert versions("no-such-distribution") == {}


def test_revision_tells_a_clean_tree_from_a_changed_one(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    commit = ["git", "-C", str(tmp_path), *identity, "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(commit, check=True)
    clean = revision(tmp_path)
    assert clean is not None and len(clean) == 40
    (tmp_path / "new").touch()
    assert revision(tmp_path) == f"{clean}+changes"


def test_provenance_can_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "provenance.json", provenance(tmp_path, "snakemake"))
    assert read_json(tmp_path / "provenance.json")["command"] == "snakemake"
