"""The drawn symbols: none is a letter of `glyphs`, none looks like one, and the list is
what the tool writes.
"""

import unicodedata
from pathlib import Path

import numpy as np

from dpfedbench.data import glyphs
from tools.choose_letters import likeness, write_ranges


def test_there_are_600_symbols_and_none_is_a_letter_of_glyphs() -> None:
    symbols = glyphs.listed(glyphs.SYMBOLS)
    assert len(symbols) == sum(glyphs.SYMBOL_SPLIT_COUNTS) == 600
    assert list(symbols) == sorted(set(symbols))
    assert not set(symbols) & set(glyphs.listed(glyphs.LETTERS))
    assert not {unicodedata.category(symbol)[0] for symbol in symbols} - set("SPN")
    text = Path(glyphs.__file__).with_name("glyph_symbols.txt").read_text()
    assert text == write_ranges(symbols, "symbols of the glyph-symbols")


def test_none_looks_like_a_letter_or_like_another_symbol() -> None:
    """A sample, by the tool's own measure; two drawings of one shape are alike by 0.95
    and more.
    """
    symbols, letters = (
        glyphs.listed(glyphs.SYMBOLS)[::10],
        glyphs.listed(glyphs.LETTERS)[::4],
    )
    alike = likeness([*symbols, *letters])
    np.fill_diagonal(alike, 0.0)
    assert alike[: len(symbols)].max() < 0.9


def test_the_drawings_are_those_of_the_letters_machinery(monkeypatch) -> None:
    monkeypatch.setattr(glyphs, "listed", {"glyph_symbols.txt": ("#", "&")}.__getitem__)
    raw = glyphs.draw_all("glyph_symbols.txt", (1, 1, 0), None, Path())
    assert raw.images.shape == (2, 20, 28, 28, 1) and raw.class_names == (
        "U+0023 NUMBER SIGN",
        "U+0026 AMPERSAND",
    )
    np.testing.assert_array_equal(raw.images[1, ..., 0], glyphs.draw_letter("&"))
