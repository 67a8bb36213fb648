"""The drawn digits: the same every time, all different, balanced, and told apart by a
simple rule.
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

from dpfedbench.data import digits
from dpfedbench.data.digits import draw_digit

DRAWN_WITH = (
    "13.0.0",
    "2.14.3",
)  # Pillow and its FreeType, whose rendering the checksum depends on
CHECKSUM = "59818f30f330f6b9a97fd982925b2d2a0e21cadaaa8d18c4dc1312bdae066b04"
# Mean of a digit's first 250 training records in 4×4 fields of 7×7 pixels, as bytes;
# measured with the above.
COARSE = {
    0: "082e3308145a58161b57581209322906",
    4: "0410300b08416f0f16637d1306183109",
    8: "072c350c0f656314186164100a383007",
}


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """The first 250 training records of each digit: [10, 250, 28, 28]."""
    return np.stack([draw_digit(digit, "train", 250) for digit in range(10)])


def _checksum() -> str:
    sample = np.stack(
        [
            draw_digit(digit, split, 20)
            for split in ("train", "test")
            for digit in COARSE
        ]
    )
    return hashlib.sha256(sample.tobytes()).hexdigest()


def test_the_recipe_is_the_recorded_one_to_the_byte() -> None:
    if (PIL.__version__, features.version("freetype2")) != DRAWN_WITH:
        pytest.skip(
            f"the checksum was recorded with Pillow and FreeType {DRAWN_WITH}; the"
            " coarse test holds"
        )
    assert _checksum() == CHECKSUM


def test_the_recipe_is_the_recorded_one_whatever_the_versions(
    drawn: np.ndarray,
) -> None:
    for digit, recorded in COARSE.items():
        fields = drawn[digit].mean(axis=0).reshape(4, 7, 4, 7).mean(axis=(1, 3)).ravel()
        assert (
            np.abs(fields - np.frombuffer(bytes.fromhex(recorded), np.uint8)).max() < 4
        )


def test_another_process_with_other_threads_draws_the_same() -> None:
    code = "from tests.dpfedbench.data.test_digits import _checksum; print(_checksum())"
    environment = os.environ | {
        "OMP_NUM_THREADS": "2",
        "PYTHONHASHSEED": "1",
        "LC_ALL": "C",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert ran.stdout.strip() == _checksum()


def test_a_record_does_not_depend_on_how_many_are_drawn(drawn: np.ndarray) -> None:
    longer = draw_digit(3, "train", 260)
    assert longer.shape == (260, 28, 28) and longer.dtype == np.uint8
    assert np.array_equal(longer[:250], drawn[3])
    assert np.array_equal(draw_digit(3, "train", 7), drawn[3, :7])


def test_no_two_records_are_the_same(drawn: np.ndarray) -> None:
    more = [draw_digit(digit, "test", 250) for digit in range(4)] + [
        draw_digit(0, "train", 500)[250:]
    ]
    records = np.concatenate(
        [drawn.reshape(-1, 784), np.concatenate(more).reshape(-1, 784)]
    )
    assert len(np.unique(records, axis=0)) == len(records) == 3750


def test_the_whole_set_is_balanced_and_has_the_shape_of_fashion_mnist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert digits.COUNTS == {"train": 6000, "test": 1000}
    monkeypatch.setattr(digits, "COUNTS", {"train": 6, "test": 2})
    monkeypatch.setattr(digits, "_BLOCK", 6)
    told: list[tuple[int, int]] = []
    raw = digits.read_digits(
        None, Path("unused"), lambda _, done, total: told.append((done, total))
    )
    assert raw.train_images.shape == (60, 28, 28, 1) and raw.test_images.shape == (
        20,
        28,
        28,
        1,
    )
    assert (
        np.bincount(raw.train_labels).tolist() == [6] * 10
        and np.bincount(raw.test_labels).tolist() == [2] * 10
    )
    for digit in (0, 9):
        assert np.array_equal(
            raw.train_images[raw.train_labels == digit, ..., 0],
            draw_digit(digit, "train", 6),
        )
        assert np.array_equal(
            raw.test_images[raw.test_labels == digit, ..., 0],
            draw_digit(digit, "test", 2),
        )
    assert raw.class_names[:2] == ("zero", "one")
    assert told == 2 * [(done, 10) for done in range(1, 11)]
    assert set(raw.versions) == {"pillow", "freetype", "matplotlib", "numpy", "scipy"}


def test_digits_are_bright_on_dark(drawn: np.ndarray) -> None:
    assert (drawn.max(axis=(2, 3)) > 90).all()
    share = (drawn > 64).mean(axis=(2, 3))
    assert share.min() > 0.02 and share.max() < 0.6
    # The ground is dark at the corners, but for noise and a stray stroke here and
    # there.
    corners = drawn[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert np.median(corners) < 13


def test_a_simple_rule_tells_them_apart_but_not_perfectly(drawn: np.ndarray) -> None:
    """A record goes to the nearest of ten mean records; by chance a tenth would be
    right.
    """
    flat = drawn.reshape(10, 250, -1).astype(np.float32)
    flat /= np.linalg.norm(flat, axis=2, keepdims=True)
    means = flat[:, :200].mean(axis=1)
    right = (flat[:, 200:] @ means.T / np.linalg.norm(means, axis=1)).argmax(
        axis=2
    ) == np.arange(10)[:, None]
    assert 0.5 < right.mean() < 0.97


def test_every_face_has_every_digit() -> None:
    from dpfedbench.data.glyphs import codes

    assert all(set(map(ord, "0123456789")) <= codes(face) for face in digits._FACES)
    assert len(digits._FACES) == 12
    assert digits._fields("1").shape == (12, 56, 56)


def test_distances_are_below_zero_inside_a_digit() -> None:
    """The middle of a 0 is outside it, in all faces but the monospaced ones, whose 0
    has a mark in it.
    """
    for face, field in zip(digits._FACES, digits._fields("0"), strict=True):
        assert field.min() < -1 and field[0, 0] > 5
        if "Mono" not in face:
            assert field[28, 28] > 1
