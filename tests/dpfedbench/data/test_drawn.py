"""Readers of the drawn data sets put each drawing into its class and split."""

from pathlib import Path

import numpy as np

from dpfedbench.data import drawn
from drawnsets.digits import draw_digit
from drawnsets.scenes import draw_scenes

from .conftest import split_counts


def test_glyphs_of_a_class_are_those_of_its_letter(monkeypatch):
    def draw_code(letter):
        drawings = np.zeros((20, 28, 28), np.uint8)
        drawings[:, 0, :3] = list(ord(letter).to_bytes(3, "big"))
        return drawings

    monkeypatch.setattr(drawn, "draw_letter", draw_code)
    raw = drawn.READERS["glyphs"](None, Path())
    codes = raw.images[:, :, 0, :3, 0].astype(int) @ [1 << 16, 1 << 8, 1]
    assert (codes == codes[:, :1]).all()
    assert codes.shape == (1623, 20)
    assert len(set(codes[:, 0])) == 1623
    for code, name in zip(codes[:, 0], raw.class_names, strict=True):
        assert name.startswith(f"U+{code:04X}")
    assert split_counts(raw) == [1150, 50, 423]


def test_scenes_are_read_with_their_split():
    def draw(letter):
        return draw_scenes(letter, 32, 2)

    splits = drawn.READERS["glyph-scenes-32"].split_counts
    raw = drawn.DrawnClasses("scene_letters", splits, draw)(None, Path())
    assert raw.images.shape == (100, 2, 32, 32, 3)
    assert split_counts(raw) == [64, 16, 20]
    assert raw.class_names[0] == "U+0041 LATIN CAPITAL LETTER A"
    assert np.array_equal(raw.images[0], draw("A"))


def test_digits_are_balanced_and_have_the_shape_of_fashion_mnist(monkeypatch):
    assert drawn.DIGIT_COUNTS == {"train": 6000, "test": 1000}
    monkeypatch.setattr(drawn, "DIGIT_COUNTS", {"train": 6, "test": 2})
    raw = drawn.read_digits(None, Path("unused"))
    assert raw.train_images.shape == (60, 28, 28, 1)
    assert raw.test_images.shape == (20, 28, 28, 1)
    assert np.bincount(raw.train_labels).tolist() == [6] * 10
    assert np.bincount(raw.test_labels).tolist() == [2] * 10
    for digit in (0, 9):
        train = raw.train_images[raw.train_labels == digit, ..., 0]
        assert np.array_equal(train, draw_digit(digit, "train", 6))
        test = raw.test_images[raw.test_labels == digit, ..., 0]
        assert np.array_equal(test, draw_digit(digit, "test", 2))
