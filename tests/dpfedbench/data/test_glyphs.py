"""The drawn letters: whole, bright on dark, distinct, and the same every time."""

import hashlib
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import features

from dpfedbench.data import glyphs
from dpfedbench.data.images import shuffled_splits
from tools.choose_letters import likeness, write_ranges

SAMPLE = "AgßЖѪՖუשᔕⵣجກ"  # of nine scripts, with two to six faces
DRAWN_WITH = (
    "13.0.0",
    "2.14.3",
)  # Pillow and its FreeType, whose rendering the checksum depends on
CHECKSUM = "650f4b2db63aca4712f8869798f6a8a28b41b7867234a4eba892b8b6ba4011da"
# Mean of a letter's twenty drawings in 4×4 fields of 7×7 pixels, as bytes; measured
# with the versions above.
COARSE = {
    "A": "010c0700032a42090f504e0d0c06100b",
    "Ж": "000a1004044e5f070c4c4d0b040c0802",
    "ᔕ": "0000000015203c15143c1f1000010000",
    "ج": "062d2503053e11010833140601172b0b",
}


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """[letters, 20, 28, 28] of the sample."""
    return np.stack([glyphs.draw_letter(letter) for letter in SAMPLE])


def test_the_recipe_is_the_recorded_one_to_the_byte(drawn: np.ndarray) -> None:
    if (PIL.__version__, features.version("freetype2")) != DRAWN_WITH:
        pytest.skip(
            f"the checksum was recorded with Pillow and FreeType {DRAWN_WITH}; the"
            " coarse test holds"
        )
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == CHECKSUM


def test_the_recipe_is_the_recorded_one_whatever_the_versions(
    drawn: np.ndarray,
) -> None:
    for letter, pictures in zip(SAMPLE, drawn, strict=True):
        if letter in COARSE:
            fields = pictures.mean(axis=0).reshape(4, 7, 4, 7).mean(axis=(1, 3)).ravel()
            assert (
                np.abs(
                    fields - np.frombuffer(bytes.fromhex(COARSE[letter]), np.uint8)
                ).max()
                < 4
            )


def test_another_process_with_other_threads_draws_the_same(drawn: np.ndarray) -> None:
    code = (
        "import hashlib, numpy as np; from dpfedbench.data.glyphs import draw_letter;"
        f"drawn = np.stack([draw_letter(letter) for letter in {SAMPLE[::-1]!r}])[::-1];"
        "print(hashlib.sha256(drawn.tobytes()).hexdigest())"
    )
    environment = os.environ | {
        "OMP_NUM_THREADS": "2",
        "PYTHONHASHSEED": "1",
        "LC_ALL": "C",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert ran.stdout.strip() == hashlib.sha256(drawn.tobytes()).hexdigest()


def test_there_are_1623_letters_and_each_is_one() -> None:
    letters = glyphs.listed(glyphs.LETTERS)
    assert len(letters) == sum(glyphs.SPLIT_COUNTS) == 1623
    assert list(letters) == sorted(set(letters))
    assert {unicodedata.category(letter)[0] for letter in letters} == {"L"}
    assert len(shuffled_splits(len(letters), glyphs.SPLIT_COUNTS)) == 1623
    with open(
        glyphs.resources.files("dpfedbench.data").joinpath("glyph_letters.txt")
    ) as handle:  # type: ignore[call-overload]
        assert handle.read() == write_ranges(letters)


def test_each_class_has_the_drawings_of_its_own_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def numbered(letter: str) -> np.ndarray:
        drawings = np.zeros((20, 28, 28), np.uint8)
        drawings[:, 0, :3] = list(ord(letter).to_bytes(3, "big"))
        return drawings

    monkeypatch.setattr(glyphs, "draw_letter", numbered)
    raw = glyphs.READERS["glyphs"](None, Path())
    codes = raw.images[:, :, 0, :3, 0].astype(int) @ [1 << 16, 1 << 8, 1]
    assert (codes == codes[:, :1]).all() and codes.shape == (1623, 20)
    names = [
        f"U+{code:04X} {unicodedata.name(chr(code), '')}".strip()
        for code in codes[:, 0]
    ]
    assert names == list(raw.class_names) and len(set(names)) == 1623
    assert [raw.splits.count(split) for split in ("train", "validation", "test")] == [
        1150,
        50,
        423,
    ]


def test_no_two_letters_look_alike() -> None:
    """The largest likeness without shifts is 0.955; that of Latin A and Greek Alpha
    would be 1.
    """
    alike = likeness(glyphs.listed(glyphs.LETTERS), reach=0)
    np.fill_diagonal(alike, 0)
    assert alike.max() < 0.96
    assert likeness("AΑА", reach=0).min() > 0.99


def test_drawings_are_thin_bright_whole_and_different(drawn: np.ndarray) -> None:
    assert drawn.shape == (len(SAMPLE), 20, 28, 28) and drawn.dtype == np.uint8
    # Bright strokes on dark; Omniglot's share of pixels over 127 is 8 %.
    assert (drawn.max(axis=(2, 3)) > 200).all()
    share = (drawn > 127).mean(axis=(2, 3))
    assert share.min() > 0.02 and share.max() < 0.25
    # Nothing is cut off: the outermost pixels hold no more than the faint edge of a
    # stroke.
    edge = np.concatenate(
        [drawn[..., 0, :], drawn[..., -1, :], drawn[..., 0], drawn[..., -1]], axis=-1
    )
    assert edge.max() < 16
    flat = drawn.reshape(-1, 28 * 28)
    assert len(np.unique(flat, axis=0)) == len(flat)


def test_a_letter_is_more_like_itself_than_like_others(drawn: np.ndarray) -> None:
    """A query goes to the nearest of twelve mean drawings; by chance a twelfth would be
    right.
    """
    flat = drawn.reshape(len(SAMPLE), 20, -1).astype(float)
    means, queries = flat[:, :10].mean(axis=1), flat[:, 10:]
    nearest = ((queries[:, :, None] - means) ** 2).sum(axis=3).argmin(axis=2)
    right = (nearest == np.arange(len(SAMPLE))[:, None]).mean()
    assert 0.4 < right < 0.95  # neither hopeless nor trivial


@pytest.mark.parametrize("face", glyphs.LIGHT_FACES + glyphs.BOLD_FACES)
def test_every_face_ships_with_matplotlib(face: str) -> None:
    assert ord("A") in glyphs.codes(face)


def test_thinning_keeps_shapes_connected_and_one_pixel_wide() -> None:
    """On rings, bars and dots: as many pieces and holes as before, and no 2×2 square
    left.
    """
    from scipy import ndimage

    canvas = np.zeros((3, 56, 56), dtype=np.uint8)
    rows, columns = np.indices((56, 56))
    radius = np.hypot(rows - 27, columns - 27)
    canvas[0] = (radius < 20) & (radius > 12)
    canvas[1, 10:18, 8:48] = canvas[1, 10:48, 20:29] = 1
    canvas[2, 10:16, 10:16] = canvas[2, 30:32, 30:32] = 1
    thin = glyphs.thin(canvas)
    eight = np.ones((3, 3))
    for before, after in zip(canvas, thin, strict=True):
        assert not (after & ~before & 1).any()
        assert ndimage.label(after, eight)[1] == ndimage.label(before, eight)[1]
        assert ndimage.label(after == 0)[1] == ndimage.label(before == 0)[1]
        square = after[1:, 1:] & after[1:, :-1] & after[:-1, 1:] & after[:-1, :-1]
        assert square.sum() == 0
