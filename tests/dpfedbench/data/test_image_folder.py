"""A folder of pictures as a data set: reading, splits and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import registry
from dpfedbench.data.image_folder import read
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.records import RawRecords, load_records

from .conftest import refusal

SIZE = 8
Make = Callable[..., Path]
TWO_SPLITS = {"train": 1, "validation": 0, "test": 1}


@pytest.fixture
def pictures(tmp_path: Path) -> Make:
    """Draw even grey pictures: picture i of class c has brightness 40 c + i."""

    def draw(counts: dict[str, int], size: tuple[int, int] = (SIZE, SIZE)) -> Path:
        for label, (name, count) in enumerate(counts.items()):
            folder = tmp_path / "shapes" / name
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                picture = Image.new("L", size, 40 * label + index)
                picture.save(folder / f"{index}.png")
        return tmp_path

    return draw


def options(**changes: Any) -> dict[str, Any]:
    return {
        "folder": "shapes",
        "size": SIZE,
        "channels": 1,
        "test_images": 2,
    } | changes


def read_records(local: Path, **changes: Any) -> RawRecords:
    raw = read(local, Path(), None, **options(**changes))
    assert isinstance(raw, RawRecords)
    return raw


def refused(local: Path | None, **changes: Any) -> str:
    return refusal(read, local, Path(), None, **options(**changes))


def brightness(images: np.ndarray) -> list[int]:
    assert (images == images[:, :1, :1]).all()
    return [int(image[0, 0, 0]) for image in images]


def test_image_folder_of_records_is_split_class_by_class(pictures: Make) -> None:
    """Classes are in the order of their names, although "b" was drawn first."""
    local = pictures({"b": 5, "a": 4})
    raw = read_records(local)
    assert raw.class_names == ("a", "b")
    assert raw.train_labels.tolist() == [0, 0, 1, 1, 1]
    assert raw.test_labels.tolist() == [0, 0, 1, 1]
    train = brightness(raw.train_images)
    test = brightness(raw.test_images)
    assert sorted(train[:2] + test[:2]) == [40, 41, 42, 43]
    assert sorted(train[2:] + test[2:]) == [0, 1, 2, 3, 4]
    assert np.array_equal(read_records(local).test_images, raw.test_images)


def test_image_folder_of_classes_takes_equally_many_pictures(pictures: Make) -> None:
    counts = {"train": 3, "validation": 1, "test": 1}
    local = pictures(dict.fromkeys("abcde", 4) | {"c": 6})
    changes = {"test_images": None, "split_classes": counts, "images_per_class": 3}
    raw = read(local, Path(), None, **options(**changes))
    assert isinstance(raw, RawImages)
    assert raw.images.shape == (5, 3, SIZE, SIZE, 1)
    assert {split: raw.splits.count(split) for split in counts} == counts
    for label, images in enumerate(raw.images):
        values = set(range(40 * label, 40 * label + 6))
        assert len(set(brightness(images)) & values) == 3


def test_image_folder_cuts_mixed_sizes_to_the_square_in_the_middle(
    pictures: Make, tmp_path: Path
) -> None:
    pictures({"a": 3, "b": 3})
    wide = np.zeros((2 * SIZE, 6 * SIZE), np.uint8)
    wide[:, 2 * SIZE : 4 * SIZE] = 200
    Image.fromarray(wide).save(tmp_path / "shapes" / "a" / "wide.png")
    raw = read_records(tmp_path)
    assert 200 in brightness(np.concatenate([raw.train_images, raw.test_images]))
    assert raw.facts == {"source_sizes": {"8x8": 6, "48x16": 1}}


def test_image_folder_reads_transparency_and_rotation_as_a_viewer_shows_them(
    pictures: Make, tmp_path: Path
) -> None:
    pictures({"a": 3})
    folder = tmp_path / "shapes" / "b"
    folder.mkdir()
    Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 0)).save(folder / "clear.png")
    half = np.zeros((SIZE, SIZE, 3), np.uint8)
    half[: SIZE // 2] = (255, 0, 0)
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    for name in ("first", "second"):
        Image.fromarray(half).save(folder / f"{name}.png", exif=upside_down)
    raw = read_records(tmp_path, channels=3, test_images=1)
    images = np.concatenate([raw.train_images, raw.test_images])
    labels = np.concatenate([raw.train_labels, raw.test_labels])
    ends = {
        tuple(map(tuple, image[[0, -1], 0].tolist())) for image in images[labels == 1]
    }
    assert ends == {((255, 255, 255), (255, 255, 255)), ((0, 0, 0), (255, 0, 0))}


def test_image_folder_that_is_no_data_set_is_refused(
    pictures: Make, tmp_path: Path
) -> None:
    assert "does not exist" in refused(tmp_path)
    assert "set data.local_dir (or DPFEDBENCH_DATA)" in refused(None)
    (tmp_path / "shapes").mkdir()
    assert "shapes has no sub-folders" in refused(tmp_path)
    pictures({"a": 3})
    assert "one class (a): put the pictures of at least two" in refused(tmp_path)
    pictures({"b": 2})
    assert "b has 2 pictures, but test_images is 2" in refused(tmp_path)
    assert "give either split_classes" in refused(tmp_path, test_images=None)
    assert "give either split_classes" in refused(tmp_path, split_classes=TWO_SPLITS)
    classes = {"test_images": None, "split_classes": TWO_SPLITS}
    assert "b has 2 pictures and a has 3" in refused(tmp_path, **classes)
    message = refused(tmp_path, **classes, images_per_class=3)
    assert "b has 2 pictures, not 3: add some" in message
    classes["split_classes"] = {"train": 2, "validation": 1, "test": 1}
    message = refused(tmp_path, **classes)
    assert "has 2 classes, but split_classes assigns 4" in message


def test_image_folder_with_unreadable_pictures_is_refused(pictures: Make) -> None:
    local = pictures({"a": 5, "b": 5})
    shapes = local / "shapes"
    whole = (shapes / "b" / "0.png").read_bytes()
    (shapes / "a" / "0.png").write_bytes(b"no picture")
    message = refused(local)
    assert "1 of the 10 pictures in" in message
    assert "a/0.png (Unident" in message
    (shapes / "a" / "1.png").write_bytes(whole[: len(whole) // 2])
    deep = Image.fromarray(np.zeros((SIZE, SIZE), np.uint16))
    deep.save(shapes / "b" / "1.png")
    (shapes / "b" / "2.png").write_bytes(b"")
    message = refused(local)
    assert "4 of the 10 pictures" in message
    assert " and 1 more: " in message


def test_image_folder_of_the_configuration_is_prepared(
    pictures: Make, tmp_path: Path
) -> None:
    local = pictures({"a": 4, "b": 4}, size=(20, 30))
    entry = {"reader": "image-folder", "version": 2, "licence": "CC0"}
    user_sets = {"shapes": entry | {"options": options()}, "unused": None}
    registry.prepare("shapes", tmp_path / "records", local, own=user_sets)
    dataset = load_records(tmp_path / "records")
    assert dataset.images.shape == (8, SIZE, SIZE, 1)
    assert dataset.class_names == ("a", "b")
    expected = {
        "version": "2",
        "licence": "CC0",
        "source": "not stated",
        "stand_in": False,
        "source_sizes": {"20x30": 8},
    }
    assert expected.items() <= dataset.summary.items()
    entry["options"] = options(test_images=None, split_classes=TWO_SPLITS)
    registry.prepare("shapes", tmp_path / "classes", local, own={"shapes": entry})
    assert load_dataset(tmp_path / "classes").image_shape == (SIZE, SIZE, 1)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("shape", {"reader": "image-folder"}, "did you mean shapes? choose one of"),
        ("shapes", {"reader": "image-folders"}, "datasets.shapes.reader is image-fold"),
        ("shapes", {"reader": "partition"}, "has no attribute 'read'"),
    ],
)
def test_data_set_of_the_configuration_without_a_reader_is_refused(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    user_sets = {"shapes": values}
    assert message in refusal(registry.prepare, name, tmp_path / "out", own=user_sets)
