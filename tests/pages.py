"""Code blocks of the pages in docs/, and the tables that their commands make."""

import csv
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs"


class CodeBlock(NamedTuple):
    """One code block of a page; `file` is the path of the file that it is, or ""."""

    language: str
    file: str
    text: str


def read_page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def code_blocks(page: str, language: str = r"\w+") -> list[CodeBlock]:
    """Return the code blocks of a page, by default of all languages."""
    block = re.compile(
        rf"^```({language}) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
    )
    return [CodeBlock(*parts) for parts in block.findall(read_page(page))]


def files_of_page(page: str) -> dict[str, str]:
    """Return the files that a page shows, by their paths."""
    return {block.file: block.text for block in code_blocks(page) if block.file}


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of results."""
    with open(path, newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))
