"""Tiny-ImageNet: the release's and the subset's layout, on tiny copies of flat colours,
zipped and as folders.
"""

import io
import os
import zipfile
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data.sources import Source
from dpfedbench.data.tiny_imagenet import read_tiny_imagenet, read_tiny_imagenet_100
from dpfedbench.errors import BenchError

NAMES = ("n01", "n02", "n03", "n04", "n05")


def _jpeg(value: int, mode: str = "RGB", size: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(
        buffer, "JPEG", quality=95
    )
    return buffer.getvalue()


def _value(index: int, example: int) -> int:
    return 20 + 40 * index + 2 * example


def _release() -> dict[str, bytes]:
    """Eleven training images a class (so that text order is not the order of numbers),
    one validation image.
    """
    files, lines = {}, []
    for index, name in enumerate(NAMES):
        for example in range(11):
            files[f"train/{name}/images/{name}_{example}.JPEG"] = _jpeg(
                _value(index, example)
            )
        number = len(NAMES) - 1 - index
        files[f"val/images/val_{number}.JPEG"] = _jpeg(
            _value(index, 11), "L" if index == 0 else "RGB"
        )
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62")
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    files["test/images/test_0.JPEG"] = _jpeg(0)
    files["wnids.txt"] = b"n01"
    return files


def _subset() -> dict[str, bytes]:
    return {
        f"{name}/{name}_{example}.JPEG": _jpeg(_value(index, example))
        for index, name in enumerate(NAMES)
        for example in range(12)
    }


def _write(place: Path, root: str, files: dict[str, bytes], *, zipped: bool) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    if zipped:
        with zipfile.ZipFile(place / f"{root}.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"{root}/{name}", content)
    else:
        for name, content in files.items():
            (place / root / name).parent.mkdir(parents=True, exist_ok=True)
            (place / root / name).write_bytes(content)
    return place


EXPECTED = np.array(
    [[_value(index, example) for example in range(12)] for index in range(5)]
)


def _check(raw: Any, side: int = 64) -> None:
    assert raw.images.shape == (5, 12, side, side, 3)
    # A flat JPEG comes back to within a rounding of its colour transform.
    assert np.abs(raw.images.astype(int) - EXPECTED[..., None, None, None]).max() <= 1
    assert raw.class_names == NAMES
    assert [raw.splits.count(split) for split in ("train", "validation", "test")] == [
        3,
        1,
        1,
    ]


@pytest.mark.parametrize("zipped", [True, False])
def test_the_release_has_its_validation_images_last(
    tmp_path: Path, zipped: bool
) -> None:
    _write(tmp_path / "tiny-imagenet", "tiny-imagenet-200", _release(), zipped=zipped)
    _check(read_tiny_imagenet(tmp_path, tmp_path / "download", count=5, examples=12))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("side", [64, 32])
def test_the_subset(tmp_path: Path, zipped: bool, side: int) -> None:
    _write(
        tmp_path / "tiny-imagenet-100", "tiny-imagenet-100", _subset(), zipped=zipped
    )
    _check(
        read_tiny_imagenet_100(tmp_path, tmp_path, size=side, count=5, examples=12),
        side,
    )


def _without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda files: _without(files, "n04/n04_3.JPEG", "n02/n02_3.JPEG"),
            r"12 images: n02 has 11, n04 has 11\)",
        ),
        (
            lambda files: {k: v for k, v in files.items() if not k.startswith("n03")},
            "4 classes, not 5",
        ),
        (lambda files: files | {"n01/n01_0.JPEG": b"no picture"}, r"n01_0\.JPEG"),
        (
            lambda files: files | {"n01/n01_0.JPEG": _jpeg(1, size=60)},
            "is 60×60, not 64×64",
        ),
    ],
)
def test_a_damaged_copy_says_what_is_wrong(
    tmp_path: Path, change: Any, what: str
) -> None:
    _write(tmp_path, "tiny-imagenet-100", change(_subset()), zipped=True)
    with pytest.raises(BenchError, match=what) as caught:
        read_tiny_imagenet_100(tmp_path, tmp_path, count=5, examples=12)
    assert "tiny-imagenet-100.zip" in str(caught.value) and "\n" not in str(
        caught.value
    )


def test_a_release_without_annotations_or_cut_short_is_refused(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "tiny-imagenet-200",
        _without(_release(), "val/val_annotations.txt"),
        zipped=True,
    )
    with pytest.raises(BenchError, match=r"val/val_annotations\.txt is missing"):
        read_tiny_imagenet(tmp_path, tmp_path, count=5, examples=12)
    path = tmp_path / "tiny-imagenet-200.zip"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(BenchError, match=r"tiny-imagenet-200\.zip is damaged"):
        read_tiny_imagenet(tmp_path, tmp_path, count=5, examples=12)


def test_without_a_copy_the_release_is_fetched_and_the_subset_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(
        BenchError, match=r"cannot download tiny-imagenet-200\.zip .*put it in"
    ):
        read_tiny_imagenet(None, tmp_path)
    with pytest.raises(
        BenchError,
        match=r"tiny-imagenet-100\.zip is missing.*put it in FOLDER/tiny-imagenet-100",
    ):
        read_tiny_imagenet_100(None, tmp_path)


def test_the_real_subset() -> None:
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
