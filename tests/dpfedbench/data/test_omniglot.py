"""Omniglot from zip files or folders; damaged copies refused; the real set where it is
at hand.
"""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import omniglot
from dpfedbench.data.images import load_dataset
from dpfedbench.data.omniglot import read_omniglot
from dpfedbench.data.registry import DATASETS, prepare
from dpfedbench.errors import BenchError

SMALL = {"images_background": 3, "images_evaluation": 2}


@pytest.fixture(autouse=True)
def _small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(omniglot, "PARTS", SMALL)
        monkeypatch.setattr(omniglot, "SPLIT_COUNTS", (3, 1, 1))


def _png(character: int, drawing: int, size: int = 105) -> bytes:
    """A one-bit drawing as in the release: dark strokes (0) on light (1)."""
    pixels = np.full((size, size), 255, dtype=np.uint8)
    row, column = 10 + 15 * character, 5 + 4 * drawing
    pixels[row : row + 12, column : column + 12] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).convert("1").save(file, "png")
    return file.getvalue()


def _members(part: str) -> dict[str, bytes]:
    """Paths as in the release, two alphabets a part."""
    members = {}
    for character in range(SMALL[part]):
        folder = f"{part}/Alphabet_{character % 2}/character{character + 1:02d}"
        for drawing in range(20):
            members[f"{folder}/{character + 1:04d}_{drawing + 1:02d}.png"] = _png(
                character, drawing
            )
    return members


def _write_zips(folder: Path, order: Callable[[list[str]], list[str]] = list) -> Path:
    (folder / "omniglot").mkdir(parents=True, exist_ok=True)
    for part in SMALL:
        members = _members(part)
        with zipfile.ZipFile(
            folder / "omniglot" / f"{part}.zip", "w", zipfile.ZIP_DEFLATED
        ) as archive:
            for name in order(list(members)):
                archive.writestr(name, members[name])
            archive.writestr(
                f"__MACOSX/{part}/Alphabet_0/character01/0001_01.png", b"not a drawing"
            )
    return folder


def test_strokes_are_bright_and_where_they_were_drawn(tmp_path: Path) -> None:
    raw = read_omniglot(_write_zips(tmp_path), tmp_path / "download")
    assert raw.images.shape == (5, 20, 28, 28, 1)
    assert raw.class_names[:3] == (
        "background/Alphabet_0/character01",
        "background/Alphabet_0/character03",
        "background/Alphabet_1/character02",
    )
    assert np.median(raw.images) == 0 and raw.images.max() == 255
    # The second class is character 2 from zero, and its first block fills rows 40 to 52
    # and columns 5 to 17 of 105: pixel (12, 3) of 28 lies inside, pixel (6, 3) above.
    assert raw.images[1, 0, 12, 3, 0] > 200 and raw.images[1, 0, 6, 3, 0] == 0


def test_neither_zip_order_nor_the_file_system_matters(tmp_path: Path) -> None:
    raw = read_omniglot(_write_zips(tmp_path / "zips"), tmp_path)
    turned = read_omniglot(
        _write_zips(tmp_path / "turned", lambda names: names[::-1]), tmp_path
    )
    for part in SMALL:
        for name, content in reversed(_members(part).items()):
            (tmp_path / "folders" / "omniglot" / name).parent.mkdir(
                parents=True, exist_ok=True
            )
            (tmp_path / "folders" / "omniglot" / name).write_bytes(content)
    folders = read_omniglot(tmp_path / "folders", tmp_path)
    for other in (turned, folders):
        assert np.array_equal(raw.images, other.images)
        assert raw.class_names == other.class_names and raw.splits == other.splits


def test_files_right_in_the_local_folder_are_found(tmp_path: Path) -> None:
    folder = _write_zips(tmp_path)
    assert len(read_omniglot(folder / "omniglot", tmp_path).images) == 5


def _rewrite(
    path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]
) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(name, content)


def _damage_content(path: Path) -> None:
    """Change one byte of a stored drawing, so that its CRC is wrong."""
    _rewrite(path, dict)
    content = path.read_bytes()
    at = content.index(b"IDAT") + 6
    path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])


def _without(part_of_name: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    return lambda members: {
        name: content for name, content in members.items() if part_of_name not in name
    }


NAME = "images_background/Alphabet_0/character01/0001_01.png"


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "not a zip file"),
        (lambda path: path.write_bytes(b""), "not a zip file"),
        (_damage_content, "Bad CRC-32"),
        (lambda path: _rewrite(path, _without("character02")), "2 characters, not 3"),
        (
            lambda path: _rewrite(path, _without(NAME)),
            "not every class has 20 images: Alphabet_0/character01 has 19",
        ),
        (
            lambda path: _rewrite(path, lambda m: m | {NAME: b"no picture"}),
            "cannot identify",
        ),
        (
            lambda path: _rewrite(path, lambda m: m | {NAME: _png(0, 0, 64)}),
            "64×64, not 105×105",
        ),
        (
            lambda path: _rewrite(path, lambda m: m | {NAME: m[NAME][:-40]}),
            "0001_01.png",
        ),
    ],
)
def test_a_damaged_archive_is_named_with_what_to_do(
    tmp_path: Path, harm: Callable[[Path], None], what: str
) -> None:
    folder = _write_zips(tmp_path)
    harm(folder / "omniglot" / "images_background.zip")
    with pytest.raises(BenchError) as caught:
        read_omniglot(folder, tmp_path / "download")
    message = str(caught.value)
    assert str(folder / "omniglot" / "images_background.zip") in message
    assert what in message and "delete it" in message and "\n" not in message


def test_a_damaged_copy_leaves_no_data_set(tmp_path: Path) -> None:
    folder = _write_zips(tmp_path / "local")
    _damage_content(folder / "omniglot" / "images_evaluation.zip")
    with pytest.raises(BenchError):
        prepare("omniglot", tmp_path / "out", folder)
    assert not (tmp_path / "out").exists()


def test_no_copy_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(
        BenchError,
        match=(
            r"cannot download images_background\.zip .*get it from https://.* put it in"
        ),
    ):
        read_omniglot(tmp_path, tmp_path / "download")


@pytest.mark.skipif(
    not os.environ.get("DPFEDBENCH_DATA"),
    reason="real Omniglot is not at hand: set DPFEDBENCH_DATA to test it",
)
def test_the_real_set(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    prepare(
        "omniglot", tmp_path, progress=lambda _, done, total: told.append((done, total))
    )
    dataset = load_dataset(tmp_path)
    assert dataset.images.shape == (1623, 20, 28, 28, 1)
    assert {split: len(members) for split, members in dataset.splits.items()} == {
        "train": 1150,
        "validation": 50,
        "test": 423,
    }
    assert told[963] == (964, 964) and told[-1] == (659, 659)
    assert dataset.summary["stand_in"] is False
    # Thin bright strokes on dark, in every drawing.
    bright = (dataset.images > 127).mean(axis=(2, 3, 4))
    assert bright.min() > 0 and 0.05 < bright.mean() < 0.12
    from PIL import __version__ as pillow

    if pillow == "13.0.0":  # the version with which the checksum was recorded
        assert dataset.summary["sha256"] == DATASETS["omniglot"].recorded_sha256
