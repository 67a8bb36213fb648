"""The page "Check your own": its code runs as it stands and prints what it shows."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "check-your-own.md"
SECTIONS = {
    section.split("\n", 1)[0]: re.findall(
        r"^```(python|text)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL
    )
    for section in re.split(
        r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )[1:]
}
MODULES = {
    "An Opacus script": "opacus",
    "A Flower server": "flwr",
    "A pfl-research simulation": "pfl",
    "A jax_privacy loop": "jax_privacy",
    "An event tree of dp_accounting or jax_privacy": "dp_accounting",
}
AUDIT_LINE = re.compile(
    r"not refuted: at least (\S+) is shown of the (\S+) declared(, as right code .*)?"
)


def comparable_lines(text):
    """Return lines without the bound of an audit, which depends on its noise, but is at
    least a third of the claim and in one audit of twenty above it.
    """
    lines = text.splitlines()
    for line in lines:
        if match := AUDIT_LINE.match(line):
            assert 1 / 3 < float(match[1]) / float(match[2]) < 1.5, line
    return [AUDIT_LINE.sub(r"not refuted, of \2", line) for line in lines]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("section", [name for name in SECTIONS if SECTIONS[name]])
def test_page_section_runs_as_it_stands(section, tmp_path, monkeypatch, capsys):
    if section in MODULES:
        pytest.importorskip(MODULES[section])
    monkeypatch.chdir(tmp_path)
    names = {}
    printed = []
    for language, text in SECTIONS[section]:
        if language == "python":
            exec(compile(text, f"{PAGE.name}: {section}", "exec"), names)
            printed += comparable_lines(capsys.readouterr().out)
        else:
            expected = comparable_lines(text)
            assert printed[: len(expected)] == expected
            printed = printed[len(expected) :]
    assert printed == []
