"""Commands of README and docs parse, and the files in them exist."""

import re
import shlex
from pathlib import Path

import pytest
from snakemake.cli import parse_args

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
# Its commands are those of the commits that were measured.
del TEXTS["measurements.md"]
WRITTEN = set(re.findall(r"^```yaml (\S+)$", "\n".join(TEXTS.values()), re.MULTILINE))
"""Files that pages let their reader write."""
START = re.compile(r"([A-Z_]+=\S+ )*(uv run (--\S+ \S+ )*)?(snakemake|python|pytest) ")
FILE = re.compile(r"[\w./-]+\.(py|yaml)|tests(/\w+)*")


def page_commands() -> list[str]:
    """Return each call of snakemake, pytest or a script, without `uv run`."""
    commands = []
    fences = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for text in TEXTS.values():
        codes = re.findall("`([^`]+)`", fences.sub("", text))
        for language, block in fences.findall(text):
            if language in ("bash", "sh"):
                codes += [line.partition("  #")[0] for line in block.splitlines()]
        for code in codes:
            for part in re.split(" *(?:&&|;) *", " ".join(code.split())):
                if start := START.match(part):
                    commands.append(start[4] + part[start.end() - 1 :])
    return list(dict.fromkeys(commands))


@pytest.mark.parametrize("command", page_commands())
def test_command_parses_and_its_files_exist(command: str) -> None:
    """A reader replaces words in capitals."""
    words = shlex.split(command)
    files = words[1:]
    if words[0] == "snakemake":
        _, arguments = parse_args(words[1:])
        profiles = arguments.profile or ()
        files = [f"{profile}/config.yaml" for profile in profiles]
        files += map(str, arguments.configfile or ())
    for file in files:
        if FILE.fullmatch(file) and not re.search(r"\b[A-Z]{3,}\b", file):
            assert file in WRITTEN or (ROOT / file).exists(), file
