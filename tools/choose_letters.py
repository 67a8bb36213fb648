"""How the characters of `glyphs` and `glyph-symbols` were chosen.

`uv run python tools/choose_letters.py` prints glyph_letters.txt, with the argument
`symbols` glyph_symbols.txt.
"""

import itertools
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from dpfedbench.data import glyphs

_CATEGORIES = (
    "Lu",
    "Ll",
    "Lt",
    "Lo",
)  # upper, lower and title case, other; of Unicode's letters


def choose_letters(count: int = sum(glyphs.SPLIT_COUNTS)) -> tuple[str, ...]:
    """Choose letters of which no two look alike; the record of its outcome is
    glyph_letters.txt.

    Candidates are the letters (but no modifiers) of the light faces that are no
    compatibility variant of another. Letters without marks come first, then marked
    ones, each kept if it is not too like (`likeness`) one kept before; the limit is the
    lowest, in steps of 0.001, that leaves enough letters.
    """
    candidates = [
        chr(code)
        for code in sorted(
            set().union(*(glyphs.codes(face) for face in glyphs.LIGHT_FACES))
        )
        if unicodedata.category(chr(code)) in _CATEGORIES
        and unicodedata.normalize("NFKC", chr(code)) == chr(code)
    ]
    skeletons = glyphs.thin(
        np.stack([glyphs.render(letter, _first_face(letter)) for letter in candidates])
    )
    drawn = (
        skeletons.sum(axis=(1, 2)) > 0.8 * glyphs.BOX
    )  # dots, and nothing at all, are no letters here
    candidates = [
        letter for letter, keep in zip(candidates, drawn, strict=True) if keep
    ]
    alike = likeness(candidates)
    marked = np.array(
        [unicodedata.normalize("NFD", letter) != letter for letter in candidates]
    )
    order = np.argsort(marked, kind="stable")
    for limit in np.arange(0.80, 1.0, 0.001):
        kept: list[int] = []
        for index in order:
            if not kept or alike[index, kept].max() < limit:
                kept.append(int(index))
        if len(kept) >= count:
            return tuple(candidates[index] for index in sorted(kept[:count]))
    raise ValueError(f"the fonts have fewer than {count} letters")


def choose_symbols(count: int = sum(glyphs.SYMBOL_SPLIT_COUNTS)) -> tuple[str, ...]:
    """Choose symbols, digits and punctuation of which no two look alike, and none looks
    like a letter of `glyphs`.

    Symbols of at least two light faces, of which no more than a half is ink that no
    line makes: a black square has no skeleton. The limit is the lowest, in steps of
    0.001, that leaves enough.
    """
    faces = [glyphs.codes(face) for face in glyphs.LIGHT_FACES]
    letters = glyphs.listed(glyphs.LETTERS)
    candidates = [
        chr(code)
        for code in sorted(set().union(*faces) - set(map(ord, letters)))
        if unicodedata.category(chr(code))[0] in "SPN"
        and sum(code in face for face in faces) > 1
    ]
    shapes = np.stack(
        [glyphs.render(symbol, _first_face(symbol)) for symbol in candidates]
    )
    lines = glyphs.thin(shapes).sum(axis=(1, 2))
    kept = (lines > 0.8 * glyphs.BOX) & (shapes.sum(axis=(1, 2)) < 8 * lines)
    candidates = [symbol for symbol, keep in zip(candidates, kept, strict=True) if keep]
    alike = likeness([*letters, *candidates])
    for limit in np.arange(0.80, 1.0, 0.001):
        chosen: list[int] = []
        for index in range(len(letters), len(alike)):
            if (
                max(
                    alike[index, : len(letters)].max(),
                    alike[index, chosen].max(initial=0.0),
                )
                < limit
            ):
                chosen.append(index)
        if len(chosen) >= count:
            return tuple(candidates[index - len(letters)] for index in chosen[:count])
    raise ValueError(f"the fonts have fewer than {count} such symbols")


def likeness(letters: Sequence[str], reach: int = 2) -> np.ndarray:
    """How alike letters look, each in its first light face: float32 [letters, letters],
    1 for the same.

    The largest normalised correlation of two letters' blurred skeletons over shifts of
    up to `reach` pixels, after each is brought to the same size.
    """

    def normalised(pictures: np.ndarray) -> np.ndarray:
        flat = pictures.reshape(len(pictures), -1)
        flat = flat - flat.mean(axis=1, keepdims=True)
        return flat / np.linalg.norm(flat, axis=1, keepdims=True)

    skeletons = glyphs.thin(
        np.stack([glyphs.render(letter, _first_face(letter)) for letter in letters])
    )
    blurred = ndimage.gaussian_filter(skeletons.astype(np.float32), (0, 2.0, 2.0))[
        :, ::2, ::2
    ]
    reference = normalised(blurred)
    alike = np.zeros((len(letters), len(letters)), dtype=np.float32)
    steps = range(-reach, reach + 1)
    for rows, columns in itertools.product(steps, steps):
        np.maximum(
            alike,
            normalised(np.roll(blurred, (rows, columns), (1, 2))) @ reference.T,
            out=alike,
        )
    return np.maximum(alike, alike.T)


def write_ranges(letters: Sequence[str], what: str = "letters of the glyphs") -> str:
    """The text of glyph_letters.txt or glyph_symbols.txt: code points in hexadecimal,
    runs of them as first-last.
    """
    runs: list[list[int]] = []
    for code in sorted(map(ord, letters)):
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    parts = [
        f"{first:04X}" if first == last else f"{first:04X}-{last:04X}"
        for first, last in runs
    ]
    lines = [" ".join(parts[start : start + 10]) for start in range(0, len(parts), 10)]
    head = f"# The {what} data set, chosen once by tools/choose_letters.py.\n"
    return head + "\n".join(lines) + "\n"


def _first_face(letter: str) -> str:
    return next(
        face for face in glyphs.LIGHT_FACES if ord(letter) in glyphs.codes(face)
    )


if __name__ == "__main__":
    symbols = sys.argv[1:] == ["symbols"]
    print(
        write_ranges(choose_symbols(), "symbols of the glyph-symbols")
        if symbols
        else write_ranges(choose_letters()),
        end="",
    )
