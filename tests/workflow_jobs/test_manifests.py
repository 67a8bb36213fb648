"""Manifests that jobs write: sums of outputs, inputs, code, and other files."""

import hashlib
from pathlib import Path

import pytest

from dpfedbench.files import atomic_path, write_text
from dpfedbench.manifests import listed
from tests.finished_run import FileList, script_context
from workflow_jobs.manifests import seal
from workflow_jobs.rule_job import rule_job

INPUT = Path("results/a/input.txt")
OUTPUT = Path("results/b/output.txt")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Change to a folder with an input that a rule has written."""
    monkeypatch.chdir(tmp_path)
    write_text(INPUT, "1\n")
    seal("first", [INPUT])


def run_job(text, *, inputs=(INPUT,), extra=None):
    """Run a rule's job that writes its output, and perhaps a file that it does not
    declare.
    """
    context = script_context("second", FileList(*inputs), FileList(OUTPUT))
    with rule_job(context, "second"):
        write_text(OUTPUT, text)
        if extra is not None:
            write_text(extra, "more\n")


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_manifest_has_the_sums_of_outputs_and_of_the_inputs_they_were_made_from():
    run_job("2\n")
    lines = Path("results/b/manifest/second-output.sha256").read_text().splitlines()
    assert lines == [
        f"{sha256('2' + chr(10))}  output.txt",
        "# made from the files and the code named here",
        f"# from {sha256('1' + chr(10))}  a/input.txt",
    ]


def test_manifest_that_another_job_is_writing_is_not_read():
    run_job("2\n")
    with atomic_path(Path("results/b/manifest/third-other.sha256")) as unfinished:
        unfinished.write_text(f"{sha256('3')}  other.txt\n", encoding="utf-8")
        assert list(listed(Path("results/b"))) == ["output.txt"]
    assert sorted(listed(Path("results/b"))) == ["other.txt", "output.txt"]


def test_inputs_outside_the_results_are_not_compared(tmp_path):
    write_text("own.yaml", "a: 1\n")
    run_job("2\n", inputs=(INPUT, Path("own.yaml")))
    text = Path("results/b/manifest/second-output.sha256").read_text()
    assert "own.yaml" not in text


def test_changed_input_ends_the_job_before_its_body(capsys):
    INPUT.write_text("changed\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        run_job("2\n")
    assert not OUTPUT.exists()
    assert "results/a/input.txt" in capsys.readouterr().err


def test_file_beside_an_output_is_in_its_manifest_and_one_elsewhere_is_not():
    run_job("2\n", extra=OUTPUT.with_name("preview.png"))
    manifest = Path("results/b/manifest/second-output.sha256")
    assert f"{sha256('more' + chr(10))}  preview.png" in manifest.read_text()
    run_job("2\n", extra=Path("results/c/elsewhere.txt"))
    assert "elsewhere" not in manifest.read_text()
    assert "preview" not in manifest.read_text()


def test_manifest_of_an_earlier_run_is_gone_where_the_job_fails():
    run_job("2\n")
    context = script_context("second", FileList(INPUT), FileList(OUTPUT))
    with pytest.raises(SystemExit), rule_job(context, "second"):
        raise RuntimeError("failed")
    assert not Path("results/b/manifest/second-output.sha256").exists()
