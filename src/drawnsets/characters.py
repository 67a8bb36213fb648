"""The characters of each drawn data set, and their names.

`tools/choose_letters.py` chose them once.
"""

import unicodedata
from collections.abc import Iterable
from importlib import resources
from typing import Literal

CharacterSet = Literal["letters", "symbols", "scene_letters"]
"""Names of the lists of characters.

- letters: 1,623 letters from Latin, Greek, Cyrillic, Armenian, Georgian, Hebrew,
  Arabic, Lao, Lisu, Tifinagh, Canadian syllabics and more. Of letters that look alike
  (Latin A, Greek Alpha, Cyrillic A), only one is among them.
- symbols: 600 symbols, digits and punctuation marks. No symbol is a letter or looks
  like one of `letters`, and no two look alike.
- scene_letters: 100 of `letters` that differ most clearly.
"""


def list_characters(name: CharacterSet) -> tuple[str, ...]:
    """Return the characters of a list, in ascending order.

    The file NAME.txt of this folder has their code points in hexadecimal; ranges are
    written first-last.
    """
    text = resources.files("drawnsets").joinpath(f"{name}.txt").read_text("ascii")
    codes: list[int] = []
    for run in " ".join(line.partition("#")[0] for line in text.splitlines()).split():
        first, _, last = run.partition("-")
        codes.extend(range(int(first, 16), int(last or first, 16) + 1))
    return tuple(map(chr, codes))


def unicode_names(characters: Iterable[str]) -> tuple[str, ...]:
    """Return the characters' code points and Unicode names, such as "U+0041 LATIN
    CAPITAL LETTER A".
    """
    return tuple(
        f"U+{ord(character):04X} {unicodedata.name(character, '')}".strip()
        for character in characters
    )
