"""mini-ImageNet from pickles or folders of images, on tiny synthetic copies."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data.mini_imagenet import SPLIT_CLASSES, read_mini_imagenet
from dpfedbench.errors import BenchError

CLASSES = {
    "train": ("n00", "n01", "n02"),
    "validation": ("n03",),
    "test": ("n04", "n05"),
}
FIRST = {"train": 0, "validation": 3, "test": 4}


def _caches(folder: Path, spelling: str = "val") -> Path:
    """Four images a class, not in the order of their classes; each image's value is
    class * 10 + example.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in CLASSES.items():
        count = len(names)
        pixels = np.zeros((count * 4, 84, 84, 3), dtype=np.uint8)
        rows: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            rows[name] = [example * count + index for example in range(4)]
            pixels[rows[name]] = (FIRST[split] + index) * 10 + np.arange(
                4, dtype=np.uint8
            )[:, None, None, None]
        file = {"train": "train", "validation": spelling, "test": "test"}[split]
        content = {"image_data": pixels, "class_dict": dict(reversed(rows.items()))}
        (folder / f"mini-imagenet-cache-{file}.pkl").write_bytes(pickle.dumps(content))
    return folder


def _read(local: Path | None) -> Any:
    return read_mini_imagenet(local, Path("unused"), classes=CLASSES, examples=4)


EXPECTED = np.arange(6)[:, None] * 10 + np.arange(4)


@pytest.mark.parametrize("spelling", ["val", "validation"])
def test_pickles(tmp_path: Path, spelling: str) -> None:
    _caches(tmp_path / "mini-imagenet", spelling)
    raw = _read(tmp_path)
    assert raw.images.shape == (6, 4, 84, 84, 3)
    assert (raw.images == EXPECTED[..., None, None, None]).all()
    assert raw.class_names == ("n00", "n01", "n02", "n03", "n04", "n05")
    assert raw.splits == ("train", "train", "train", "validation", "test", "test")


def _folders(place: Path, *splits: str) -> None:
    for name in (name for split in splits for name in CLASSES[split]):
        (place / name).mkdir(parents=True)
        for example in range(4):
            value = int(name[1:]) * 10 + example
            Image.new("RGB", (100, 90), (value, value, value)).save(
                place / name / f"{example}.png"
            )


def test_the_split_is_of_64_16_and_20_classes_that_differ() -> None:
    assert {split: len(names) for split, names in SPLIT_CLASSES.items()} == {
        "train": 64,
        "validation": 16,
        "test": 20,
    }
    assert len({name for names in SPLIT_CLASSES.values() for name in names}) == 100
    # The house finch is the first of Ravi and Larochelle's training classes, the goose
    # one for validation and the golden retriever one for testing.
    assert "n01532829" in SPLIT_CLASSES["train"]
    assert (
        "n01855672" in SPLIT_CLASSES["validation"]
        and "n02099601" in SPLIT_CLASSES["test"]
    )


def test_all_classes_side_by_side(tmp_path: Path) -> None:
    place = tmp_path / "mini-imagenet"
    _folders(place, *CLASSES)
    raw = _read(tmp_path)
    assert (raw.images == EXPECTED[..., None, None, None]).all()
    assert raw.splits == ("train", "train", "train", "validation", "test", "test")
    (place / "n99").mkdir()
    with pytest.raises(BenchError, match=r"n99 are not among its 6 classes"):
        _read(tmp_path)
    (place / "n99").rmdir()
    for name in ("n01", "n02"):
        (place / name).rename(tmp_path / name)
    with pytest.raises(
        BenchError,
        match=r"mini-imagenet is damaged .*of its 3 classes n01, n02 are missing",
    ) as caught:
        _read(tmp_path)
    assert "\n" not in str(caught.value)


def test_folders_of_images(tmp_path: Path) -> None:
    for split in CLASSES:
        _folders(tmp_path / split, split)
    raw = _read(tmp_path)
    assert (raw.images == EXPECTED[..., None, None, None]).all()
    assert raw.splits == ("train", "train", "train", "validation", "test", "test")
    (tmp_path / "test" / "n05" / "3.png").write_bytes(b"no picture")
    with pytest.raises(BenchError, match=r"n05/3\.png is damaged"):
        _read(tmp_path)
    (tmp_path / "test" / "n05" / "3.png").unlink()
    with pytest.raises(
        BenchError, match=r"test is damaged .*not every class has 4 images: n05 has 3"
    ):
        _read(tmp_path)


@pytest.mark.parametrize("local", [True, False])
def test_a_missing_copy_says_how_to_get_one(tmp_path: Path, local: bool) -> None:
    with pytest.raises(BenchError) as caught:
        _read(tmp_path if local else None)
    message = str(caught.value)
    assert (
        "mini-imagenet-cache-train.pkl" in message
        and "https://image-net.org" in message
    )
    assert (str(tmp_path / "mini-imagenet") if local else "data.local_dir") in message
    assert "\n" not in message


def _change(path: Path, **change: Any) -> None:
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()) | change))


def _rows(first: list[int]) -> dict[str, list[int]]:
    return {"n00": first, "n01": [4, 5, 6, 7], "n02": [8, 9, 10, 11]}


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (
            lambda path: path.write_bytes(path.read_bytes()[:1000]),
            "cannot be read as a pickle",
        ),
        (
            lambda path: _change(path, class_dict={"n00": [0, 1, 2, 3]}),
            "of its 3 classes n01, n02 are missing",
        ),
        (
            lambda path: _change(path, class_dict=_rows([0, 1, 2])),
            "n00 has not 4 images",
        ),
        (
            lambda path: _change(path, class_dict=_rows([0, 1, 2, 99])),
            "n00 has not 4 images",
        ),
        (
            lambda path: _change(path, image_data=np.zeros((12, 84, 84), np.uint8)),
            "image_data is uint8",
        ),
        (lambda path: _change(path, class_dict=None), "no image_data and class_dict"),
    ],
)
def test_a_damaged_pickle_is_named(tmp_path: Path, harm: Any, what: str) -> None:
    harm(_caches(tmp_path) / "mini-imagenet-cache-train.pkl")
    with pytest.raises(BenchError, match=what) as caught:
        _read(tmp_path)
    assert "mini-imagenet-cache-train.pkl" in str(caught.value) and "\n" not in str(
        caught.value
    )


def test_a_class_of_another_split_is_refused(tmp_path: Path) -> None:
    path = _caches(tmp_path) / "mini-imagenet-cache-val.pkl"
    _change(path, class_dict={"n03": [0, 1, 2, 3], "n00": [0, 1, 2, 3]})
    with pytest.raises(BenchError, match="n00 are not among its 1 classes"):
        _read(tmp_path)
