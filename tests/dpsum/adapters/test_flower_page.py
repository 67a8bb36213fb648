"""The section of the page about a Flower server does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "check-your-own.md"


def test_the_section_prints_three_epsilons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## A Flower server\n")[1].split("\n## ")[0]
    script, printed = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)[:2]
    assert sum(line.rstrip().endswith("#") for line in script.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(script, str(PAGE), "exec"), {})
    said = [line for line in capsys.readouterr().out.splitlines() if "INFO" not in line]
    for wanted in printed.splitlines()[:3]:  # what is claimed and what holds is the same each time
        assert wanted in said
    assert any(re.fullmatch(r"not refuted: at least [\d.]+ is shown of the 8.385 declared", line) for line in said)
