"""Stand-in data sets that `drawnsets` draws from matplotlib's fonts.

- glyphs: 1,623 letters × 20 drawings, 28×28. They stand in for Omniglot.
- glyph-symbols: 600 symbols × 20 drawings. They are public data: a federation on
  `glyphs` may start from a model trained on them. They contain no class of a client or
  of a test.
- glyph-scenes-32 and glyph-scenes-84: 100 classes of colour scenes. They stand in for
  CIFAR-FS and mini-ImageNet. The scenes are easy enough for the default run: Conv-4
  learns them from a thousand clients. It has to learn the form of letters, which
  untrained weights do not distinguish.
- digits: 70,000 records of ten digits, 28×28. They stand in for Fashion-MNIST and
  MNIST. Each digit has as many records as each garment of Fashion-MNIST.

Another FreeType may move a few pixels. summary.json records the versions and states
whether the checksum is the recorded one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.images import RawImages, shuffled_splits, with_progress
from dpfedbench.data.records import RawRecords
from drawnsets.characters import CharacterSet, list_characters, unicode_names
from drawnsets.digits import draw_digit
from drawnsets.fonts import library_versions
from drawnsets.letters import draw_letter
from drawnsets.scenes import draw_scenes

DIGITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)
DIGIT_COUNTS = {"train": 6000, "test": 1000}
"""Number of records of each digit, by split."""


@dataclass(frozen=True)
class DrawnClasses:
    """Reader of a data set that has one class for each character.

    Attributes:
        characters: the characters.
        split_counts: numbers of train, validation and test classes.
        draw: function that draws all images of a character, uint8 [images, height,
            width, channels].
    """

    characters: CharacterSet
    split_counts: tuple[int, int, int]
    draw: Callable[[str], np.ndarray]

    def __call__(self, local: Path | None, download_dir: Path) -> RawImages:
        """Draw all characters. The folders are not used."""
        characters = list_characters(self.characters)
        drawings = [
            self.draw(character)
            for character in with_progress(characters, "drawing characters")
        ]
        return RawImages(
            images=np.stack(drawings),
            class_names=unicode_names(characters),
            splits=shuffled_splits(len(characters), self.split_counts),
            versions=library_versions(),
        )


def draw_grey_letter(character: str) -> np.ndarray:
    """Draw a character with one channel: uint8 [20, 28, 28, 1]."""
    return draw_letter(character)[..., None]


def read_digits(local: Path | None, download_dir: Path) -> RawRecords:
    """Draw all digits. The folders are not used."""
    blocks: dict[str, Any] = {}
    for split, count in DIGIT_COUNTS.items():
        drawings = [
            draw_digit(digit, split, count)
            for digit in with_progress(range(len(DIGITS)), f"drawing {split} digits")
        ]
        blocks[f"{split}_images"] = np.concatenate(drawings)[..., None]
        blocks[f"{split}_labels"] = np.repeat(np.arange(len(DIGITS)), count)
    return RawRecords(**blocks, class_names=DIGITS, versions=library_versions())


READERS = {
    "glyphs": DrawnClasses("letters", (1150, 50, 423), draw_grey_letter),
    "glyph-symbols": DrawnClasses("symbols", (500, 50, 50), draw_grey_letter),
    "glyph-scenes-32": DrawnClasses(
        "scene_letters", (64, 16, 20), partial(draw_scenes, size=32, count=600)
    ),
    # 600 images per class would be 1.3 GB, read completely for a check before each run.
    "glyph-scenes-84": DrawnClasses(
        "scene_letters", (64, 16, 20), partial(draw_scenes, size=84, count=200)
    ),
    "digits": read_digits,
}
