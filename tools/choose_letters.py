"""Choose the letters and symbols of `drawnsets`.

`uv run python tools/choose_letters.py` prints the content of letters.txt. With
the argument `symbols` it prints the content of symbols.txt.
"""

import itertools
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from drawnsets.characters import list_characters
from drawnsets.fonts import BOX, LIGHT_FACES, codes, render
from drawnsets.skeletons import thin

_CATEGORIES = ("Lu", "Ll", "Lt", "Lo")
"""Unicode's letters of upper, lower and title case, and others."""


def choose_letters(count: int = 1623) -> tuple[str, ...]:
    """Choose letters of which no two look alike.

    letters.txt records the result. Candidates are the letters, without modifiers,
    of the light faces that are no compatibility variant of another letter. The function
    goes through the letters without marks and then through those with marks, and
    chooses each whose likeness (`measure_likeness`) to all chosen letters is below a
    limit. The limit is the lowest, in steps of 0.001, that leaves enough letters.

    Args:
        count: how many letters to choose.
    """
    candidates = [
        chr(code)
        for code in sorted(set().union(*(codes(face) for face in LIGHT_FACES)))
        if unicodedata.category(chr(code)) in _CATEGORIES
        and unicodedata.normalize("NFKC", chr(code)) == chr(code)
    ]
    skeletons = thin(
        np.stack([render(letter, _first_face(letter)) for letter in candidates])
    )
    # Leaves out dots and empty pictures.
    has_lines = skeletons.sum(axis=(1, 2)) > 0.8 * BOX
    candidates = list(itertools.compress(candidates, has_lines))
    likenesses = measure_likeness(candidates)
    marked = np.array(
        [unicodedata.normalize("NFD", letter) != letter for letter in candidates]
    )
    order = np.argsort(marked, kind="stable")
    for limit in np.arange(0.80, 1.0, 0.001):
        chosen: list[int] = []
        for index in order:
            if not chosen or likenesses[index, chosen].max() < limit:
                chosen.append(int(index))
        if len(chosen) >= count:
            return tuple(candidates[index] for index in sorted(chosen[:count]))
    raise ValueError(f"the fonts have fewer than {count} letters")


def choose_symbols(count: int = 600) -> tuple[str, ...]:
    """Choose symbols, digits and punctuation of which no two look alike, and none looks
    like one of the letters.

    symbols.txt records the result. Candidates are in at least two light faces,
    and consist of lines: their ink is less than 8 times their skeleton, which leaves
    out a black square. The limit of likeness is the lowest, in steps of 0.001, that
    leaves enough symbols.

    Args:
        count: how many symbols to choose.
    """
    faces = [codes(face) for face in LIGHT_FACES]
    letters = list_characters("letters")
    candidates = [
        chr(code)
        for code in sorted(set().union(*faces) - set(map(ord, letters)))
        if unicodedata.category(chr(code))[0] in "SPN"
        and sum(code in face for face in faces) > 1
    ]
    shapes = np.stack([render(symbol, _first_face(symbol)) for symbol in candidates])
    skeleton_sizes = thin(shapes).sum(axis=(1, 2))
    has_lines = skeleton_sizes > 0.8 * BOX
    is_thin = shapes.sum(axis=(1, 2)) < 8 * skeleton_sizes
    candidates = list(itertools.compress(candidates, has_lines & is_thin))
    likenesses = measure_likeness([*letters, *candidates])
    for limit in np.arange(0.80, 1.0, 0.001):
        chosen: list[int] = []
        for index in range(len(letters), len(likenesses)):
            to_letters = likenesses[index, : len(letters)].max()
            to_chosen = likenesses[index, chosen].max(initial=0.0)
            if max(to_letters, to_chosen) < limit:
                chosen.append(index)
        if len(chosen) >= count:
            return tuple(candidates[index - len(letters)] for index in chosen[:count])
    raise ValueError(f"the fonts have fewer than {count} such symbols")


def measure_likeness(letters: Sequence[str], reach: int = 2) -> np.ndarray:
    """Return the likeness of each pair of letters: float32 [letters, letters].

    The likeness is the largest normalised correlation of two letters' blurred skeletons
    over shifts of up to `reach` pixels, after both are brought to the same size. It is
    1 for equal letters. Each letter is drawn in its first light face.

    Args:
        letters: the letters.
        reach: largest shift, in pixels of the blurred skeletons.
    """

    def normalise(pictures: np.ndarray) -> np.ndarray:
        flat = pictures.reshape(len(pictures), -1)
        flat = flat - flat.mean(axis=1, keepdims=True)
        return flat / np.linalg.norm(flat, axis=1, keepdims=True)

    skeletons = thin(
        np.stack([render(letter, _first_face(letter)) for letter in letters])
    )
    blurred = ndimage.gaussian_filter(skeletons.astype(np.float32), (0, 2.0, 2.0))[
        :, ::2, ::2
    ]
    reference = normalise(blurred)
    largest = np.zeros((len(letters), len(letters)), dtype=np.float32)
    steps = range(-reach, reach + 1)
    for rows, columns in itertools.product(steps, steps):
        shifted = normalise(np.roll(blurred, (rows, columns), (1, 2)))
        np.maximum(largest, shifted @ reference.T, out=largest)
    return np.maximum(largest, largest.T)


def format_ranges(letters: Sequence[str], what: str = "letters of the glyphs") -> str:
    """Return the text of letters.txt or symbols.txt.

    It has the code points in hexadecimal, and consecutive ones as FIRST-LAST.

    Args:
        letters: the letters or symbols.
        what: what the first line of the file calls them.
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
    return next(face for face in LIGHT_FACES if ord(letter) in codes(face))


if __name__ == "__main__":
    if sys.argv[1:] == ["symbols"]:
        text = format_ranges(choose_symbols(), "symbols of the glyph-symbols")
    else:
        text = format_ranges(choose_letters())
    print(text, end="")
