"""Commands of README and docs parse, and the files and targets in them exist."""

import functools
import re
import shlex
from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_args

from tests.shipped import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
# Its commands are those of the commits that were measured.
del TEXTS["measurements.md"]
# Placeholders, which the reader replaces.
BLANK = re.compile(r"…|\.\.\.|\b[A-Z]{3,}\b|\$\w+")
START = re.compile(r"([A-Z_]+=\S+ )*(uv run|snakemake) ")
FILE = re.compile(r"[\w./-]+\.(py|yaml)|tests(/\w+)*|workflow|Snakefile")
ITEM = re.compile(r"results/(?:\w+/)?(?:tables|figures|export)/([^/]+)/(.+)\.\w+")


def page_commands() -> list[tuple[str, str]]:
    """Return each call of snakemake, pytest or a script, as (page, command)."""
    commands = []
    for page, text in TEXTS.items():
        fences = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
        codes = [
            " ".join(c.split()) for c in re.findall("`([^`]+)`", fences.sub("", text))
        ]
        for language, block in fences.findall(text):
            if language in ("bash", "sh"):
                codes += [line.partition("  #")[0] for line in block.splitlines()]
        for code in codes:
            parts = [part.strip() for part in re.split(r"&&|;", code)]
            commands += [(page, part) for part in parts if START.match(part)]
    return list(dict.fromkeys(commands))


def words_of(command: str) -> list[str]:
    """Return the program and its arguments, without variables and without `uv run`."""
    words = [
        word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", word)
    ]
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words[0].startswith("--"):
            words = words[1 if words[0].startswith("--no-") else 2 :]
    return words


@functools.cache
def known_files_and_items() -> tuple[set[str], set[tuple[str, str]]]:
    """Return the YAML files that pages let their reader write, and all tables and
    figures, as (paper, name).
    """
    block = re.compile(r"^```yaml (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    written = dict(block.findall("\n".join(TEXTS.values())))
    values = [parsed(path) for path in (ROOT / "config").rglob("*.yaml")]
    values += [yaml.safe_load(text) for text in written.values()]
    items = {
        (paper, name)
        for file in values
        for paper, experiment in file.get("experiments", {}).items()
        for kind in ("tables", "figures")
        for name in (experiment or {}).get(kind, {})
    }
    return set(written), items


@pytest.mark.parametrize(("page", "command"), page_commands())
def test_command_parses_and_its_files_and_targets_exist(
    page: str, command: str
) -> None:
    words = words_of(command)
    if words[0] != "snakemake":
        for word in words[1:]:
            if FILE.fullmatch(word) and not BLANK.search(word):
                assert (ROOT / word).exists(), f"{page}: {word} does not exist"
        return
    _, arguments = parse_args(words[1:])
    written, items = known_files_and_items()
    for profile in arguments.profile or ():
        assert (ROOT / profile / "config.yaml").is_file(), profile
    for file in arguments.configfile or ():
        assert str(file) in written or (ROOT / file).is_file(), file
    for target in arguments.targets:
        item = ITEM.fullmatch(target)
        if item and item[2] not in ("privacy", "answer") and not BLANK.search(target):
            assert item.groups() in items, target
