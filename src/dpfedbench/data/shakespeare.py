"""Shakespeare-800: roles of the plays, 800 words each (Li et al. 2020).

The construction follows LEAF (Caldas et al. 2018). The local folder `shakespeare` holds
the plays as published by Project Gutenberg (plays/*.txt, or plays.zip), or LEAF's raw
data, one file per role (by_play_and_character/*.txt). LEAF's own split into roles, of
which 345 were published, cannot be reproduced from the plays.
"""

from __future__ import annotations

import re
from pathlib import Path

from dpfedbench.data.images import with_progress
from dpfedbench.data.sources import Source
from dpfedbench.data.tokens import RawTexts, cut_into_tasks, texts_of, words_of
from dpfedbench.errors import BenchError

WORDS = 800
SOURCE = "https://www.gutenberg.org/ebooks/100"
_PLAYS = Source(
    name="Shakespeare-800",
    folders=("shakespeare",),
    parts={"the plays": ("by_play_and_character", "plays", "plays.zip")},
    check="UTF-8; enough roles of 800 words",
    downloaded=False,
    copy_bytes=1_948_410,
)
PLACES = {"shakespeare-800": _PLAYS}

_HEADING = re.compile(r"(?:[A-Z][A-Za-z'’. -]{0,30}\.|[A-Z][A-Z'’ -]{1,30})\s*")
_DIVISION = re.compile(r"(?:ACT|SCENE|Scene|Act|EPILOGUE|PROLOGUE|THE END)\b")
_DIRECTION = re.compile(r"\[.*?\]|\(_.*?_\)", re.DOTALL)


def roles(play: str) -> dict[str, list[str]]:
    """Return the words of each role of a play, by the role's heading in capitals.

    A speech is a paragraph below a heading: "Ham.", "FIRST WITCH." or "LADY MACBETH".
    Further paragraphs up to the next heading or scene belong to the same role. Stage
    directions in brackets belong to no role.
    """
    speeches: dict[str, list[str]] = {}
    speaker = ""
    for paragraph in re.split(r"\n\s*\n", play.replace("\r\n", "\n")):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if not lines:
            continue
        if _DIVISION.match(lines[0]):
            speaker = ""
            continue
        if len(lines) > 1 and _HEADING.fullmatch(lines[0]):
            speaker = re.sub(r"\s+", " ", lines[0].rstrip(".").upper())
            lines = lines[1:]
        if speaker:
            speeches.setdefault(speaker, []).append("\n".join(lines))
    return {
        role: words_of(_DIRECTION.sub(" ", "\n".join(texts)))
        for role, texts in speeches.items()
    }


def read_shakespeare(local: Path | None, download_dir: Path) -> RawTexts:
    """Read the plays, or LEAF's files.

    Raises:
        BenchError: there are neither plays nor LEAF's files, a file is not UTF-8, or
            there are too few roles.
    """
    copy = _PLAYS.find_whole(local)
    if copy is None:
        raise BenchError(
            f"no plays found: put plays/*.txt from {SOURCE} (one file for each play),"
            f" or LEAF's by_play_and_character/*.txt, in {_PLAYS.place}"
        )
    texts: list[tuple[str, list[str]]] = []
    for name, text in with_progress(texts_of(copy), "shakespeare: reading the plays"):
        if copy.path.name == "by_play_and_character":
            texts.append((name, words_of(text)))
        else:
            texts += [
                (f"{name}: {role}", words)
                for role, words in sorted(roles(text).items())
            ]
    return cut_into_tasks(
        texts,
        words=WORDS,
        test=0.1,
        validation=0.1,
        called=f"{copy.path}",
    )


READERS = {"shakespeare-800": read_shakespeare}
