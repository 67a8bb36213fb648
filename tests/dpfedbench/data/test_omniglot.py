"""Omniglot from zip files or folders."""

import io

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import omniglot
from dpfedbench.data.omniglot import read_omniglot

from .conftest import refusal, write_files, write_zip

PARTS = {"images_background": 3, "images_evaluation": 2}
NAME = "images_background/Alphabet_0/character01/0001_01.png"


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(omniglot, "PARTS", PARTS)
    monkeypatch.setattr(omniglot, "SPLIT_COUNTS", (3, 1, 1))


def drawing(character, number, size=105):
    """Return a one-bit drawing as published: dark strokes (0) on light (1)."""
    pixels = np.full((size, size), 255, dtype=np.uint8)
    row = 10 + 15 * character
    column = 5 + 4 * number
    pixels[row : row + 12, column : column + 12] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).convert("1").save(file, "png")
    return file.getvalue()


def drawings(part):
    """Return the files of a part, with two alphabets."""
    members = {}
    for character in range(PARTS[part]):
        folder = f"{part}/Alphabet_{character % 2}/character{character + 1:02d}"
        for number in range(20):
            name = f"{folder}/{character + 1:04d}_{number + 1:02d}.png"
            members[name] = drawing(character, number)
    return members


def write_zips(folder, change=dict):
    """Write both archives. `change` is applied to the files of the background part."""
    for part in PARTS:
        by_product = f"__MACOSX/{part}/Alphabet_0/character01/0001_01.png"
        members = drawings(part) | {by_product: b"not a drawing"}
        if part == "images_background":
            members = change(members)
        write_zip(folder / "omniglot" / f"{part}.zip", members)
    return folder


def reverse(members):
    return dict(reversed(members.items()))


def test_omniglot_strokes_are_bright_and_in_their_position(small, tmp_path):
    """The first block of the second class fills rows 40 to 52 and columns 5 to 17 of
    105. Pixel (12, 3) of 28 lies inside, pixel (6, 3) above.
    """
    raw = read_omniglot(write_zips(tmp_path), tmp_path / "download")
    assert raw.images.shape == (5, 20, 28, 28, 1)
    assert raw.class_names[:3] == (
        "background/Alphabet_0/character01",
        "background/Alphabet_0/character03",
        "background/Alphabet_1/character02",
    )
    assert np.median(raw.images) == 0
    assert raw.images.max() == 255
    assert raw.images[1, 0, 12, 3, 0] > 200
    assert raw.images[1, 0, 6, 3, 0] == 0


def test_omniglot_does_not_depend_on_the_order_of_files(small, tmp_path):
    raw = read_omniglot(write_zips(tmp_path / "zips"), tmp_path)
    write_zips(tmp_path / "reversed", reverse)
    for part in PARTS:
        write_files(tmp_path / "folders" / "omniglot", reverse(drawings(part)))
    # The last one: files that lie in the local folder itself.
    for folder in ("reversed", "folders", "zips/omniglot"):
        copy = read_omniglot(tmp_path / folder, tmp_path)
        assert np.array_equal(raw.images, copy.images)
        assert raw.class_names == copy.class_names
        assert raw.splits == copy.splits


def without_one(members):
    return {name: members[name] for name in members if name != NAME}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_one, "Alphabet_0/character01 has 19"),
        (lambda members: members | {NAME: drawing(0, 0, 64)}, "64×64, not 105×105"),
        (lambda members: members | {NAME: members[NAME][:-40]}, "0001_01.png"),
    ],
)
def test_omniglot_archive_with_other_content_is_refused(
    small, tmp_path, change, message
):
    text = refusal(read_omniglot, write_zips(tmp_path, change), tmp_path / "download")
    assert str(tmp_path / "omniglot" / "images_background.zip") in text
    assert message in text
