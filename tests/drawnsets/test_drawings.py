"""Letters, symbols, scenes and digits follow their recorded recipe."""

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
from scipy import ndimage

from drawnsets.characters import list_characters
from drawnsets.digits import draw_digit
from drawnsets.letters import draw_letter
from drawnsets.scenes import draw_scenes
from drawnsets.skeletons import thin
from tools.choose_letters import measure_likeness

LETTERS = "AgßЖѪՖუשᔕⵣجກ"  # of nine scripts, with two to six faces
# Versions of Pillow and its FreeType, whose rendering the checksums depend on.
DRAWN_WITH = ("13.0.0", "2.14.3")
CHECKSUMS = {
    "letters": "650f4b2db63aca4712f8869798f6a8a28b41b7867234a4eba892b8b6ba4011da",
    "digits": "59818f30f330f6b9a97fd982925b2d2a0e21cadaaa8d18c4dc1312bdae066b04",
    "scenes-32": "e69c0b0e932db5833dd0d80c002e402d48bac5fdfe7448fff773c200a5a5415a",
    "scenes-84": "bb92d30a2db048a41a47089a486d451f2d7826ee9620e14f47374a3db68d2579",
}
# Means of drawings in 4 x 4 fields of 7 x 7 pixels, as bytes, with the versions above:
# twenty drawings of a letter, 250 records of a digit.
COARSE_LETTERS = {
    "A": "010c0700032a42090f504e0d0c06100b",
    "Ж": "000a1004044e5f070c4c4d0b040c0802",
    "ᔕ": "0000000015203c15143c1f1000010000",
    "ج": "062d2503053e11010833140601172b0b",
}
COARSE_DIGITS = {
    0: "082e3308145a58161b57581209322906",
    4: "0410300b08416f0f16637d1306183109",
    8: "072c350c0f656314186164100a383007",
}
# Mean colours of the first twelve scenes of a letter, as bytes.
SCENE_COLOURS = {(32, "A"): "868289", (84, "Ж"): "798c7d"}


def draw_letters(order=LETTERS):
    """Draw letters in this order; return uint8 [letters, 20, 28, 28] in the sample's
    order.
    """
    drawings = {letter: draw_letter(letter) for letter in order}
    return np.stack([drawings[letter] for letter in LETTERS])


def draw_sample(name):
    if name == "letters":
        return draw_letters()
    if name == "digits":
        train = [draw_digit(digit, "train", 20) for digit in COARSE_DIGITS]
        test = [draw_digit(digit, "test", 20) for digit in COARSE_DIGITS]
        return np.stack([*train, *test])
    size = int(name.removeprefix("scenes-"))
    return np.stack([draw_scenes(letter, size, 12) for letter in "AЖᕗ"])


def checksum(name):
    return hashlib.sha256(draw_sample(name).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def letters():
    return draw_letters()


@pytest.fixture(scope="module")
def records():
    """Draw the first 250 training records of each digit: uint8 [10, 250, 28, 28]."""
    return np.stack([draw_digit(digit, "train", 250) for digit in range(10)])


@pytest.mark.parametrize("name", CHECKSUMS)
def test_drawn_set_is_the_recorded_one_to_the_byte(name):
    if (PIL.__version__, features.version("freetype2")) != DRAWN_WITH:
        pytest.skip(f"the checksum was recorded with Pillow and FreeType {DRAWN_WITH}")
    assert checksum(name) == CHECKSUMS[name]


@pytest.mark.parametrize("name", CHECKSUMS)
def test_drawn_set_is_the_same_from_another_process(name, tmp_path):
    """The process has other threads, another hash seed and locale, and compiles its
    loops.
    """
    module = "tests.drawnsets.test_drawings"
    code = f"from {module} import checksum; print(checksum({name!r}))"
    environment = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "1", "LC_ALL": "C"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        env=os.environ | environment | {"NUMBA_CACHE_DIR": str(tmp_path)},
        check=True,
    )
    assert process.stdout.strip() == checksum(name)


def assert_coarsely(drawings, recorded):
    fields = drawings.mean(axis=0).reshape(4, 7, 4, 7).mean(axis=(1, 3)).ravel()
    expected = np.frombuffer(bytes.fromhex(recorded), np.uint8)
    assert np.abs(fields - expected).max() < 4


def test_drawn_sets_are_coarsely_the_recorded_ones_with_any_version(letters, records):
    for letter, recorded in COARSE_LETTERS.items():
        assert_coarsely(letters[LETTERS.index(letter)], recorded)
    for digit, recorded in COARSE_DIGITS.items():
        assert_coarsely(records[digit], recorded)
    for (size, letter), recorded in SCENE_COLOURS.items():
        colour = draw_scenes(letter, size, 12).mean(axis=(0, 1, 2))
        expected = np.frombuffer(bytes.fromhex(recorded), np.uint8)
        assert np.abs(colour - expected).max() < 2


def test_letter_does_not_depend_on_the_letters_before_it(letters):
    assert np.array_equal(draw_letters(LETTERS[::-1]), letters)


def test_characters_are_1623_letters_and_600_symbols():
    letters = list_characters("letters")
    symbols = list_characters("symbols")
    assert len(letters) == 1623
    assert len(symbols) == 600
    assert not set(symbols) & set(letters)
    for listed in (letters, symbols):
        assert list(listed) == sorted(set(listed))
    assert {unicodedata.category(letter)[0] for letter in letters} == {"L"}
    assert {unicodedata.category(symbol)[0] for symbol in symbols} <= set("SPN")


def test_characters_do_not_look_alike():
    """The largest likeness of two letters without shifts is 0.955. Two drawings of one
    shape have at least 0.95 with shifts (a sample of symbols and letters).
    """
    letters = list_characters("letters")
    likenesses = measure_likeness(letters, reach=0)
    np.fill_diagonal(likenesses, 0)
    assert likenesses.max() < 0.96
    assert measure_likeness("AΑА", reach=0).min() > 0.99
    symbols = list_characters("symbols")[::10]
    likenesses = measure_likeness([*symbols, *letters[::4]])
    np.fill_diagonal(likenesses, 0.0)
    assert likenesses[: len(symbols)].max() < 0.9


def test_thin_keeps_shapes_connected_and_one_pixel_wide():
    """Rings, bars and dots keep their pieces and holes, and no 2 x 2 square stays."""
    canvas = np.zeros((3, 56, 56), dtype=np.uint8)
    rows, columns = np.indices((56, 56))
    radius = np.hypot(rows - 27, columns - 27)
    canvas[0] = (radius < 20) & (radius > 12)
    canvas[1, 10:18, 8:48] = canvas[1, 10:48, 20:29] = 1
    canvas[2, 10:16, 10:16] = canvas[2, 30:32, 30:32] = 1
    eight = np.ones((3, 3))
    for before, after in zip(canvas, thin(canvas), strict=True):
        assert not (after & ~before & 1).any()
        assert ndimage.label(after, eight)[1] == ndimage.label(before, eight)[1]
        assert ndimage.label(after == 0)[1] == ndimage.label(before == 0)[1]
        square = after[1:, 1:] & after[1:, :-1] & after[:-1, 1:] & after[:-1, :-1]
        assert square.sum() == 0


def test_no_two_drawings_are_equal(letters, records):
    """So no image of a test set is in the training set."""
    scenes = draw_scenes("A", 32, 120)
    more = [draw_digit(digit, "test", 250) for digit in range(4)]
    more.append(draw_digit(0, "train", 500)[250:])
    drawn = np.concatenate([*records, *more])
    for images in (letters.reshape(-1, 28 * 28), scenes, drawn):
        flat = images.reshape(len(images), -1)
        assert len(np.unique(flat, axis=0)) == len(flat)


def test_scenes_are_of_100_letters_that_differ():
    letters = list_characters("scene_letters")
    assert len(set(letters)) == 100
    assert set(letters) <= set(list_characters("letters"))
    likenesses = measure_likeness(letters)
    np.fill_diagonal(likenesses, 0)
    assert likenesses.max() < 0.67  # 0.66 when chosen; FreeType's versions differ less


def test_scenes_of_a_smaller_set_are_the_first_of_a_larger_one():
    scenes = draw_scenes("A", 32, 120)  # blocks of 50, the last one cut
    assert np.array_equal(draw_scenes("A", 32, 55), scenes[:55])


def test_scene_colours_do_not_depend_on_the_class():
    """The variance of mean colours between classes, over that within, is expected to be
    1/40 for means of forty.
    """
    letters = list_characters("scene_letters")[:12]
    scenes = np.stack([draw_scenes(letter, 32, 40) for letter in letters])
    colours = scenes.mean(axis=(2, 3))
    between = colours.mean(axis=1).var(axis=0).mean()
    assert between / colours.var(axis=1).mean() < 0.1


def test_digit_record_does_not_depend_on_the_number_of_records(records):
    longer = draw_digit(3, "train", 260)
    assert np.array_equal(longer[:250], records[3])
    assert np.array_equal(draw_digit(3, "train", 7), records[3, :7])
