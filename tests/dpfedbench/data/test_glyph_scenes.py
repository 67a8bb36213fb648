"""The drawn scenes: the recorded recipe, one letter a class, and colours that are usual
but not fixed.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import features

from dpfedbench.data import glyph_scenes, glyphs
from dpfedbench.errors import BenchError
from tools.choose_letters import likeness

SAMPLE = "AЖᕗ"
DRAWN_WITH = (
    "13.0.0",
    "2.14.3",
)  # Pillow and its FreeType, whose rendering the checksum depends on
CHECKSUMS = {
    32: "e69c0b0e932db5833dd0d80c002e402d48bac5fdfe7448fff773c200a5a5415a",
    84: "bb92d30a2db048a41a47089a486d451f2d7826ee9620e14f47374a3db68d2579",
}
# Mean colour of the first twelve scenes of a letter, as bytes; measured with the
# versions above.
COARSE = {
    (32, "A"): "868289",
    (84, "Ж"): "798c7d",
}


def draw(letter: str, size: int, count: int = 12, **change: object) -> np.ndarray:
    import dataclasses

    out = np.empty((count, size, size, 3), np.uint8)
    recipe = dataclasses.replace(glyph_scenes.Recipe(), **change)  # type: ignore[arg-type]
    glyph_scenes.draw_scenes(letter, size, out, recipe)
    return out


@pytest.fixture(scope="module", params=[32, 84])
def drawn(request: pytest.FixtureRequest) -> np.ndarray:
    """[letters, 12, size, size, 3] of the sample."""
    return np.stack([draw(letter, request.param) for letter in SAMPLE])


def test_the_recipe_is_the_recorded_one_to_the_byte(drawn: np.ndarray) -> None:
    if (PIL.__version__, features.version("freetype2")) != DRAWN_WITH:
        pytest.skip(
            f"the checksum was recorded with Pillow and FreeType {DRAWN_WITH}; the"
            " coarse test holds"
        )
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == CHECKSUMS[drawn.shape[2]]


@pytest.mark.parametrize(("size", "letter"), COARSE)
def test_the_recipe_is_the_recorded_one_whatever_the_versions(
    size: int, letter: str
) -> None:
    colour = draw(letter, size).mean(axis=(0, 1, 2))
    assert (
        np.abs(
            colour - np.frombuffer(bytes.fromhex(COARSE[size, letter]), np.uint8)
        ).max()
        < 2
    )


def test_another_process_that_compiles_anew_draws_the_same(
    drawn: np.ndarray, tmp_path: Path
) -> None:
    size = drawn.shape[2]
    code = (
        "import hashlib, numpy as np; from dpfedbench.data.glyph_scenes import"
        f" draw_scenes;out = np.empty((12, {size}, {size}, 3), np.uint8);"
        f" draw_scenes('A', {size},"
        " out);print(hashlib.sha256(out.tobytes()).hexdigest())"
    )
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "2",
        "LC_ALL": "C",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert ran.stdout.strip() == hashlib.sha256(drawn[0].tobytes()).hexdigest()


def test_there_are_100_letters_of_glyphs_that_differ() -> None:
    letters = glyphs.listed("glyph_scenes.txt")
    assert len(set(letters)) == 100 == sum(glyph_scenes.SPLIT_COUNTS)
    assert list(letters) == sorted(letters) and set(letters) <= set(
        glyphs.listed(glyphs.LETTERS)
    )
    alike = likeness(letters)
    np.fill_diagonal(alike, 0)
    assert alike.max() < 0.67  # 0.66 when chosen; FreeType's versions differ by less


def test_a_smaller_set_is_the_beginning_of_a_larger_one() -> None:
    many = draw("A", 32, 120)  # blocks of 50, the last one cut
    assert np.array_equal(draw("A", 32, 55), many[:55])
    assert len(np.unique(many.reshape(120, -1), axis=0)) == 120


def test_the_letter_stands_out_from_its_ground() -> None:
    """Ink of the least contrast; a share of the image that a pen's trace can have."""
    plain = {"light": 0.0, "noise": (0.0, 0.0), "texture": (0.0, 0.0)}
    scenes = draw("T", 32, 20, **plain) / 255
    # A pen that leaves no trace: the same draws, without the letter.
    still = draw("T", 32, 20, **plain, pen=(-1.0, -1.0)) / 255
    apart = np.sqrt(((scenes - still) ** 2).sum(axis=3))
    assert (
        apart.max(axis=(1, 2)).min() > 0.55
    )  # 0.6 from each of the ground's colours, but mixtures lie between them
    share = (apart > 0.1).mean(axis=(1, 2))
    assert share.min() > 0.02 and share.max() < 0.35


def test_colours_tell_nothing_of_the_class() -> None:
    """The mean colour's spread between classes over that within: 1/40 is expected of
    means of forty.
    """
    colours = np.stack(
        [
            draw(letter, 32, 40).mean(axis=(1, 2))
            for letter in glyphs.listed("glyph_scenes.txt")[:12]
        ]
    )
    assert colours.mean(axis=1).var(axis=0).mean() / colours.var(axis=1).mean() < 0.1


def test_read_has_the_split_and_refuses_another_size() -> None:
    said: list[tuple[str, int, int]] = []
    raw = glyph_scenes.read(
        None,
        Path(),
        lambda *progress: said.append(progress),
        size=32,
        images_per_class=2,
    )
    assert raw.images.shape == (100, 2, 32, 32, 3)
    assert [raw.splits.count(split) for split in ("train", "validation", "test")] == [
        64,
        16,
        20,
    ]
    assert raw.class_names[0] == "U+0041 LATIN CAPITAL LETTER A"
    assert said[-1][1:] == (100, 100)
    assert np.array_equal(raw.images[0], draw("A", 32, 2))
    with pytest.raises(
        BenchError, match="scenes of 64 pixels are not defined: take 32 or 84"
    ):
        glyph_scenes.read(None, Path(), size=64, images_per_class=2)
