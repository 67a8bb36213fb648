"""A folder of pictures as a data set: reading, splits, by-products and refusals."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import registry
from dpfedbench.data.image_folder import read
from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_records

from .conftest import refusal, split_counts

SIZE = 8
TWO_SPLITS = {"train": 1, "validation": 0, "test": 1}


@pytest.fixture
def draw(tmp_path):
    """Draw even grey pictures: picture i of class c has brightness 40 c + i."""

    def draw(counts, size=(SIZE, SIZE)):
        for label, (name, count) in enumerate(counts.items()):
            folder = tmp_path / "shapes" / name
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                picture = Image.new("L", size, 40 * label + index)
                picture.save(folder / f"{index}.png")
        return tmp_path

    return draw


@pytest.fixture
def pictures(draw):
    return draw({"a": 3, "b": 3})


def options(**changes):
    sizes = {"folder": "shapes", "size": SIZE, "channels": 1, "test_images": 2}
    return sizes | changes


def read_pictures(local, **changes):
    return read(local, Path(), None, **options(**changes))


def all_images(raw):
    return np.concatenate([raw.train_images, raw.test_images])


def brightness(images):
    assert (images == images[:, :1, :1]).all()
    return images[:, 0, 0, 0].tolist()


def test_image_folder_of_records_is_split_class_by_class(draw):
    """Classes are in the order of their names, although "b" was drawn first."""
    local = draw({"b": 5, "a": 4})
    raw = read_pictures(local)
    assert raw.class_names == ("a", "b")
    assert raw.train_labels.tolist() == [0, 0, 1, 1, 1]
    assert raw.test_labels.tolist() == [0, 0, 1, 1]
    train = brightness(raw.train_images)
    test = brightness(raw.test_images)
    assert sorted(train[:2] + test[:2]) == [40, 41, 42, 43]
    assert sorted(train[2:] + test[2:]) == [0, 1, 2, 3, 4]
    assert np.array_equal(read_pictures(local).test_images, raw.test_images)


def test_image_folder_of_classes_takes_equally_many_pictures(draw):
    counts = {"train": 3, "validation": 1, "test": 1}
    local = draw(dict.fromkeys("abcde", 4) | {"c": 6})
    changes = {"test_images": None, "split_classes": counts, "images_per_class": 3}
    raw = read_pictures(local, **changes)
    assert raw.images.shape == (5, 3, SIZE, SIZE, 1)
    assert split_counts(raw) == [3, 1, 1]
    for label, images in enumerate(raw.images):
        values = set(range(40 * label, 40 * label + 6))
        assert len(set(brightness(images)) & values) == 3


def test_image_folder_cuts_mixed_sizes_to_the_square_in_the_middle(pictures):
    wide = np.zeros((2 * SIZE, 6 * SIZE), np.uint8)
    wide[:, 2 * SIZE : 4 * SIZE] = 200
    Image.fromarray(wide).save(pictures / "shapes" / "a" / "wide.png")
    raw = read_pictures(pictures)
    assert 200 in brightness(all_images(raw))
    assert raw.facts == {"source_sizes": {"8x8": 6, "48x16": 1}}


def test_image_folder_reads_transparency_and_rotation_as_a_viewer_shows_them(draw):
    local = draw({"a": 3})
    folder = local / "shapes" / "b"
    folder.mkdir()
    Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 0)).save(folder / "clear.png")
    half = np.zeros((SIZE, SIZE, 3), np.uint8)
    half[: SIZE // 2] = (255, 0, 0)
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    for name in ("first", "second"):
        Image.fromarray(half).save(folder / f"{name}.png", exif=upside_down)
    raw = read_pictures(local, channels=3, test_images=1)
    labels = np.concatenate([raw.train_labels, raw.test_labels])
    ends = {
        tuple(map(tuple, image[[0, -1], 0].tolist()))
        for image in all_images(raw)[labels == 1]
    }
    assert ends == {((255, 255, 255), (255, 255, 255)), ((0, 0, 0), (255, 0, 0))}


def test_image_folder_of_the_configuration_is_prepared(draw, tmp_path):
    local = draw({"a": 4, "b": 4}, size=(20, 30))
    entry = {"reader": "image-folder", "version": 2, "licence": "CC0"}
    user_sets = {"shapes": entry | {"options": options()}, "unused": None}
    registry.prepare("shapes", tmp_path / "records", local, own=user_sets)
    dataset = load_records(tmp_path / "records")
    assert dataset.images.shape == (8, SIZE, SIZE, 1)
    assert dataset.class_names == ("a", "b")
    expected = {"version": "2", "licence": "CC0", "stand_in": False}
    assert expected.items() <= dataset.summary.items()
    entry["options"] = options(test_images=None, split_classes=TWO_SPLITS)
    registry.prepare("shapes", tmp_path / "classes", local, own={"shapes": entry})
    assert load_dataset(tmp_path / "classes").image_shape == (SIZE, SIZE, 1)


# By-products: an image that is counted twice could be in the training and the test set


def test_hidden_files_and_links_in_a_folder_are_left_out(pictures):
    """A loop of links ends. The folder itself may be a link."""
    shapes = pictures / "shapes"
    hidden = ("../elsewhere/0.png", ".git/0.png", "__MACOSX/0.png", "a/._0.png")
    for name in (*hidden, "a/c/.x/9.png"):
        (shapes / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (SIZE, SIZE), 200).save(shapes / name)
    (shapes / "a/back").symlink_to(shapes)
    (shapes / "c").symlink_to(pictures / "elsewhere")
    (shapes / "a/again.png").symlink_to(shapes / "a/0.png")
    (shapes / "b/out.png").symlink_to(pictures / "elsewhere/0.png")
    (shapes / "b/nowhere.png").symlink_to(pictures / "nothing")
    (pictures / "linked").symlink_to(shapes)
    for folder in ("shapes", "linked"):
        raw = read_pictures(pictures, folder=folder)
        assert sorted(brightness(all_images(raw))) == [0, 1, 2, 40, 41, 42]
        assert raw.class_names == ("a", "b")


# Grey pixels of more than 8 bits, which Pillow would cut to 255


def test_grey_pixels_of_more_than_8_bits_are_refused(pictures):
    deep = Image.fromarray(np.full((8, 8), 300, np.uint16))
    deep.save(pictures / "shapes/a/deep.png")
    for channels in (1, 3):
        message = refusal(read_pictures, pictures, channels=channels)
        assert "not of 8 bits" in message
