"""The page that checks others' trainings, section by section: its code runs as it
stands and prints what it says.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "check-your-own.md"
SECTIONS = {
    part.split("\n", 1)[0]: re.findall(
        r"^```(python|text)\n(.*?)^```$", part, flags=re.M | re.S
    )
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
}
MODULES = {
    "An Opacus script": "opacus",
    "A Flower server": "flwr",
    "A pfl-research simulation": "pfl",
    "An event tree of dp_accounting or jax_privacy": "dp_accounting",
}
SHOWN = re.compile(
    r"not refuted: at least (\S+) is shown of the (\S+) declared(, as right code .*)?"
)


def _said(text: str) -> list[str]:
    """Lines, but for what an audit shows of a claim, which its noise decides; it is
    asked to show a third at least.

    Right code's bound is above its claim in one audit of twenty.
    """
    lines = text.splitlines()
    for line in lines:
        if found := SHOWN.match(line):
            assert 1 / 3 < float(found[1]) / float(found[2]) < 1.5, line
    return [SHOWN.sub(r"not refuted, of \2", line) for line in lines]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "section", [name for name, blocks in SECTIONS.items() if blocks]
)
def test_a_section_runs_as_it_stands(
    section: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if (module := MODULES.get(section)) and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    said: list[str] = []
    for language, text in SECTIONS[section]:
        if language == "python":
            exec(compile(text, f"{PAGE.name}: {section}", "exec"), names)
            said += _said(capsys.readouterr().out)
        else:
            wanted = _said(text)
            assert said[: len(wanted)] == wanted
            said = said[len(wanted) :]
    assert said == []


def test_opacus_script_marks_the_seven_lines_to_add() -> None:
    (_, script), *_ = SECTIONS["An Opacus script"]
    assert sum("  #" in line for line in script.splitlines()) == 7
    assert all(
        "  #" in line
        for line in script.splitlines()
        if re.search("watch|account|profiles", line)
    )
