"""Tiny-ImageNet: the release's and the subset's layout, on tiny copies of flat colours."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data.sources import Source
from dpfedbench.data.tiny_imagenet import read_tiny_imagenet, read_tiny_imagenet_100

from .conftest import refusal, split_counts, write_files

NAMES = ("n01", "n02", "n03", "n04", "n05")
SMALL = {"count": 5, "examples": 12}
EXPECTED = 20 + 40 * np.arange(5)[:, None] + 2 * np.arange(12)
"""Value of each image, by class and example."""
Files = dict[str, bytes]


def jpeg(value: int, mode: str = "RGB", size: int = 64) -> bytes:
    buffer = io.BytesIO()
    colour = value if mode == "L" else (value, value, value)
    Image.new(mode, (size, size), colour).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def release() -> Files:
    """Return eleven training images a class and one validation image.

    With eleven, the order of texts is not the order of numbers.
    """
    files = {"test/images/test_0.JPEG": jpeg(0), "wnids.txt": b"n01"}
    lines = []
    for index, name in enumerate(NAMES):
        for example in range(11):
            path = f"train/{name}/images/{name}_{example}.JPEG"
            files[path] = jpeg(int(EXPECTED[index, example]))
        number = len(NAMES) - 1 - index
        mode = "L" if index == 0 else "RGB"
        path = f"val/images/val_{number}.JPEG"
        files[path] = jpeg(int(EXPECTED[index, 11]), mode)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62")
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    return files


def subset() -> Files:
    return {
        f"{name}/{name}_{example}.JPEG": jpeg(int(EXPECTED[index, example]))
        for index, name in enumerate(NAMES)
        for example in range(12)
    }


def write_set(folder: Path, root: str, files: Files, *, zipped: bool = True) -> None:
    if not zipped:
        write_files(folder / root, files)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{root}.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{root}/{name}", content)


def check_images(raw: Any, size: int = 64) -> None:
    """Check values to within a rounding of JPEG's colour transform."""
    assert raw.images.shape == (5, 12, size, size, 3)
    assert np.abs(raw.images.astype(int) - EXPECTED[..., None, None, None]).max() <= 1
    assert raw.class_names == NAMES
    assert split_counts(raw) == [3, 1, 1]


@pytest.mark.parametrize("zipped", [True, False])
def test_tiny_imagenet_has_its_validation_images_last(
    tmp_path: Path, zipped: bool
) -> None:
    folder = tmp_path / "tiny-imagenet"
    write_set(folder, "tiny-imagenet-200", release(), zipped=zipped)
    check_images(read_tiny_imagenet(tmp_path, tmp_path / "download", **SMALL))


@pytest.mark.parametrize(("zipped", "size"), [(True, 64), (False, 32)])
def test_tiny_imagenet_subset_is_read(tmp_path: Path, zipped: bool, size: int) -> None:
    folder = tmp_path / "tiny-imagenet-100"
    write_set(folder, "tiny-imagenet-100", subset(), zipped=zipped)
    check_images(read_tiny_imagenet_100(tmp_path, tmp_path, size=size, **SMALL), size)


def without(files: Files, text: str) -> Files:
    return {name: content for name, content in files.items() if text not in name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: without(files, "n04_3"), "12 images: n04 has 11)"),
        (lambda files: without(files, "n03"), "4 classes, not 5"),
        (lambda files: files | {"n01/n01_0.JPEG": b"no picture"}, "n01_0.JPEG"),
        (
            lambda files: files | {"n01/n01_0.JPEG": jpeg(1, size=60)},
            "is 60×60, not 64×64",
        ),
    ],
)
def test_tiny_imagenet_subset_with_other_content_is_refused(
    tmp_path: Path, change: Any, message: str
) -> None:
    write_set(tmp_path, "tiny-imagenet-100", change(subset()))
    text = refusal(read_tiny_imagenet_100, tmp_path, tmp_path, **SMALL)
    assert message in text
    assert "tiny-imagenet-100.zip" in text


def test_tiny_imagenet_without_annotations_or_cut_short_is_refused(
    tmp_path: Path,
) -> None:
    write_set(tmp_path, "tiny-imagenet-200", without(release(), "annotations"))
    message = refusal(read_tiny_imagenet, tmp_path, tmp_path, **SMALL)
    assert "val/val_annotations.txt is missing" in message
    path = tmp_path / "tiny-imagenet-200.zip"
    path.write_bytes(path.read_bytes()[:500])
    message = refusal(read_tiny_imagenet, tmp_path, tmp_path, **SMALL)
    assert "tiny-imagenet-200.zip is damaged" in message


def test_tiny_imagenet_subset_that_is_missing_names_file_and_folder(
    tmp_path: Path,
) -> None:
    message = refusal(read_tiny_imagenet_100, None, tmp_path)
    assert "tiny-imagenet-100.zip is missing" in message
    assert "put it in FOLDER/tiny-imagenet-100" in message


def test_real_tiny_imagenet_subset() -> None:
    local = os.environ.get("DPFEDBENCH_DATA")
    source = Source(name="Tiny-ImageNet", folders=("tiny-imagenet-100",))
    copy = source.find(Path(local) if local else None, "tiny-imagenet-100.zip")
    if copy is None:
        pytest.skip("DPFEDBENCH_DATA has no tiny-imagenet-100.zip")
    with zipfile.ZipFile(copy.path) as archive:
        members = [name for name in archive.namelist() if name.endswith(".JPEG")]
        assert len(members) == 100 * 200
        assert len({name.split("/")[1] for name in members}) == 100
        with Image.open(io.BytesIO(archive.read(members[0]))) as image:
            assert image.size == (64, 64)
