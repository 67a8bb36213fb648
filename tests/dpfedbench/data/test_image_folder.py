"""A folder of pictures as a data set: what is read, how it is split, and what is
refused.
"""

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
from dpfedbench.errors import BenchError

SIZE = 8
Make = Callable[..., Path]


@pytest.fixture
def pictures(tmp_path: Path) -> Make:
    """Make a folder of even grey pictures: class c's picture i has the brightness 40 c
    + i.
    """

    def make(counts: dict[str, int], size: tuple[int, int] = (SIZE, SIZE)) -> Path:
        for label, (name, count) in enumerate(counts.items()):
            (tmp_path / "shapes" / name).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                Image.new("L", size, 40 * label + index).save(
                    tmp_path / "shapes" / name / f"{index}.png"
                )
        return tmp_path

    return make


def options(**changes: Any) -> dict[str, Any]:
    return {"folder": "shapes", "size": SIZE, "channels": 1, "test_images": 2} | changes


def refusal(local: Path | None, **changes: Any) -> str:
    with pytest.raises(BenchError) as caught:
        read(local, Path(), None, **options(**changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def brightness(images: np.ndarray) -> list[int]:
    assert (images == images[:, :1, :1]).all()
    return [int(image[0, 0, 0]) for image in images]


def test_records_are_split_class_by_class(pictures: Make) -> None:
    raw = read(pictures({"b": 5, "a": 4}), Path(), None, **options())
    assert isinstance(raw, RawRecords)
    assert raw.class_names == ("a", "b")  # by name, whatever the file system says
    assert raw.train_labels.tolist() == [
        0,
        0,
        1,
        1,
        1,
    ] and raw.test_labels.tolist() == [0, 0, 1, 1]
    # "b" was made first, as class 0, and "a" as class 1.
    train, test = brightness(raw.train_images), brightness(raw.test_images)
    assert sorted(train[:2] + test[:2]) == [40, 41, 42, 43]
    assert sorted(train[2:] + test[2:]) == [0, 1, 2, 3, 4]
    again = read(pictures({"b": 5, "a": 4}), Path(), None, **options())
    assert isinstance(again, RawRecords) and np.array_equal(
        again.test_images, raw.test_images
    )


def test_classes_are_dealt_out_and_pictures_left_out(pictures: Make) -> None:
    counts = {"train": 3, "validation": 1, "test": 1}
    local = pictures(dict.fromkeys("abcde", 4) | {"c": 6})
    raw = read(
        local,
        Path(),
        None,
        **options(test_images=None, split_classes=counts, images_per_class=3),
    )
    assert isinstance(raw, RawImages)
    assert raw.images.shape == (5, 3, SIZE, SIZE, 1)
    assert {split: raw.splits.count(split) for split in counts} == counts
    for label, images in enumerate(raw.images):
        assert (
            len(set(brightness(images)) & set(range(40 * label, 40 * label + 6))) == 3
        )


def test_mixed_sizes_become_the_square_in_the_middle(
    pictures: Make, tmp_path: Path
) -> None:
    pictures({"a": 3, "b": 3})
    wide = np.zeros((2 * SIZE, 6 * SIZE), np.uint8)
    wide[:, 2 * SIZE : 4 * SIZE] = 200  # the middle square; the dark sides are cut away
    Image.fromarray(wide).save(tmp_path / "shapes" / "a" / "wide.png")
    said: list[str] = []
    raw = read(
        tmp_path, Path(), lambda what, done, total: said.append(what), **options()
    )
    assert isinstance(raw, RawRecords)
    assert 200 in brightness(np.concatenate([raw.train_images, raw.test_images]))
    assert raw.facts == {"source_sizes": {"8x8": 6, "48x16": 1}}
    assert (
        said[-1] == "pictures of 2 sizes, cut to their middle square and resized to 8"
    )


def test_colours_transparency_and_rotation_are_what_a_viewer_shows(
    pictures: Make, tmp_path: Path
) -> None:
    pictures({"a": 3, "b": 2})
    for file in (tmp_path / "shapes" / "b").iterdir():
        file.unlink()
    Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 0)).save(
        tmp_path / "shapes" / "b" / "clear.png"
    )
    half = np.zeros((SIZE, SIZE, 3), np.uint8)
    half[: SIZE // 2] = (255, 0, 0)
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    for name in ("one", "two"):
        Image.fromarray(half).save(
            tmp_path / "shapes" / "b" / f"{name}.png", exif=turned
        )
    raw = read(tmp_path, Path(), None, **options(channels=3, test_images=1))
    assert isinstance(raw, RawRecords)
    images, labels = (
        np.concatenate([raw.train_images, raw.test_images]),
        [*raw.train_labels, *raw.test_labels],
    )
    seen = {
        tuple(map(tuple, image[[0, -1], 0].tolist()))
        for image, label in zip(images, labels, strict=True)
        if label
    }
    assert seen == {((255, 255, 255), (255, 255, 255)), ((0, 0, 0), (255, 0, 0))}


def test_what_is_no_data_set_is_refused_in_one_line(
    pictures: Make, tmp_path: Path
) -> None:
    assert "image folder" in refusal(tmp_path) and "is not there" in refusal(tmp_path)
    assert (
        "set data.local_dir (or DPFEDBENCH_DATA), or give an absolute path"
        in refusal(None)
    )
    (tmp_path / "shapes").mkdir()
    assert "shapes has no sub-folders" in refusal(tmp_path)
    pictures({"a": 3})
    assert "shapes has one class (a): at least two are needed" in refusal(tmp_path)
    pictures({"b": 2})
    assert "b has 2 pictures, but test_images is 2" in refusal(tmp_path)
    assert "one of them" in refusal(tmp_path, test_images=None)
    assert "one of them" in refusal(
        tmp_path, split_classes={"train": 1, "validation": 0, "test": 1}
    )
    few = {
        "test_images": None,
        "split_classes": {"train": 1, "validation": 0, "test": 1},
    }
    assert "b has 2 pictures and a has 3" in refusal(tmp_path, **few)
    said = refusal(tmp_path, **few)
    assert (
        "add some to b, take its folder away, or set images_per_class to at most 2"
        in said
    )
    assert "b has 2 pictures, not 3: add some" in refusal(
        tmp_path, **few, images_per_class=3
    )
    few["split_classes"] = {"train": 2, "validation": 1, "test": 1}
    assert (
        "has 2 classes, but split_classes deals out 4 (train 2, validation 1, test 1)"
        in refusal(tmp_path, **few)
    )
    (tmp_path / "shapes" / "empty").mkdir()
    assert "empty has 0 pictures, not any: add some, remove the sub-folder" in refusal(
        tmp_path
    )


def test_unreadable_pictures_are_named(pictures: Make) -> None:
    local = pictures({"a": 5, "b": 5})
    whole = (local / "shapes" / "b" / "0.png").read_bytes()
    (local / "shapes" / "a" / "0.png").write_bytes(b"no picture")
    said = refusal(local)
    assert (
        "1 of the 10 pictures in" in said
        and "a/0.png (UnidentifiedImageError): replace or remove" in said
    )
    (local / "shapes" / "a" / "1.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(np.zeros((SIZE, SIZE), np.uint16)).save(
        local / "shapes" / "b" / "1.png"
    )
    (local / "shapes" / "b" / "2.png").write_bytes(b"")
    said = refusal(local)
    assert "4 of the 10 pictures" in said and " and 1 more: " in said
    assert said.count(".png") == 3


def test_a_data_set_that_the_configuration_states_is_prepared(
    pictures: Make, tmp_path: Path
) -> None:
    local = pictures({"a": 4, "b": 4}, size=(20, 30))
    own = {
        "shapes": {
            "reader": "image-folder",
            "version": 2,
            "licence": "CC0",
            "options": options(),
        },
        "other": None,
    }
    registry.prepare("shapes", tmp_path / "out", local, own=own)
    found = load_records(tmp_path / "out")
    assert found.images.shape == (8, SIZE, SIZE, 1) and found.class_names == ("a", "b")
    wanted = {
        "version": "2",
        "licence": "CC0",
        "source": "not stated",
        "stand_in": False,
        "source_sizes": {"20x30": 8},
    }
    assert wanted.items() <= found.summary.items()
    few = options(
        test_images=None, split_classes={"train": 1, "validation": 0, "test": 1}
    )
    registry.prepare(
        "shapes",
        tmp_path / "few",
        local,
        own={"shapes": {"reader": "image-folder", "options": few}},
    )
    assert load_dataset(tmp_path / "few").summary["source_sizes"] == {"20x30": 8}


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "shape",
            {"reader": "image-folder"},
            "no data set 'shape': did you mean shapes? choose one of cifar-10, ",
        ),
        (
            "shapes",
            {"reader": "image-folders"},
            "datasets.shapes.reader is image-folders, but",
        ),
        ("shapes", {"reader": "partition"}, "has no attribute 'read'"),
        (
            "shapes",
            {"reader": "image-folder", "options": {"sice": 28}},
            "unknown key datasets.shapes.options.sice",
        ),
    ],
)
def test_a_bad_statement_is_one_line(
    name: str, values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BenchError) as caught:
        registry.prepare(name, tmp_path / "out", own={"shapes": values})
    assert said in str(caught.value) and "\n" not in str(caught.value)
