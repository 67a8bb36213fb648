"""A folder of pictures as a data set: reading, splits, by-products and refusals."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from dpfedbench.data.image_folder import ENDINGS, read

from .conftest import flat_picture, refusal, split_counts, write_files

THREE_EACH = {"a": 3, "b": 3}


def draw(root, counts):
    """Draw even grey pictures: picture i of class c has brightness 40 c + i."""
    pictures = {
        f"shapes/{name}/{index}.png": flat_picture(40 * label + index, 8, "L")
        for label, (name, count) in enumerate(counts.items())
        for index in range(count)
    }
    return write_files(root, pictures)


def read_pictures(local, **changes):
    options = {"folder": "shapes", "size": 8, "channels": 1, "test_images": 2}
    return read(local, Path(), **options | changes)


def all_images(raw):
    return np.concatenate([raw.train_images, raw.test_images])


def brightness(images):
    assert (images == images[:, :1, :1]).all()
    return images[:, 0, 0, 0].tolist()


def test_image_folder_of_records_is_split_class_by_class(tmp_path):
    """Classes are in the order of their names, although "b" was drawn first."""
    raw = read_pictures(draw(tmp_path, {"b": 5, "a": 4}))
    assert raw.class_names == ("a", "b")
    assert raw.train_labels.tolist() == [0, 0, 1, 1, 1]
    assert raw.test_labels.tolist() == [0, 0, 1, 1]
    train = brightness(raw.train_images)
    test = brightness(raw.test_images)
    assert sorted(train[:2] + test[:2]) == [40, 41, 42, 43]
    assert sorted(train[2:] + test[2:]) == [0, 1, 2, 3, 4]
    assert np.array_equal(read_pictures(tmp_path).test_images, raw.test_images)


def test_image_folder_of_classes_takes_equally_many_pictures(tmp_path):
    draw(tmp_path, dict.fromkeys("abcde", 4) | {"c": 6})
    counts = {"train": 3, "validation": 1, "test": 1}
    changes = {"test_images": None, "split_classes": counts, "images_per_class": 3}
    raw = read_pictures(tmp_path, **changes)
    assert raw.images.shape == (5, 3, 8, 8, 1)
    assert split_counts(raw) == [3, 1, 1]
    for label, images in enumerate(raw.images):
        values = set(range(40 * label, 40 * label + 6))
        assert len(set(brightness(images)) & values) == 3


def test_image_folder_cuts_mixed_sizes_to_the_square_in_the_middle(tmp_path):
    draw(tmp_path, THREE_EACH)
    wide = np.zeros((16, 48), np.uint8)
    wide[:, 16:32] = 200
    Image.fromarray(wide).save(tmp_path / "shapes" / "a" / "wide.png")
    raw = read_pictures(tmp_path)
    assert 200 in brightness(all_images(raw))
    assert raw.facts == {"source_sizes": {"8x8": 6, "48x16": 1}}


def test_image_folder_reads_transparency_and_rotation_as_a_viewer_shows_them(tmp_path):
    folder = draw(tmp_path, THREE_EACH) / "shapes" / "b"
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(folder / "0.png")
    half = np.zeros((8, 8, 3), np.uint8)
    half[:4] = (255, 0, 0)
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    for name in ("1.png", "2.png"):
        Image.fromarray(half).save(folder / name, exif=upside_down)
    raw = read_pictures(tmp_path, channels=3, test_images=1)
    labels = np.concatenate([raw.train_labels, raw.test_labels])
    ends = all_images(raw)[labels == 1][:, [0, -1], 0]
    expected = [[[0] * 3, [255, 0, 0]]] * 2 + [[[255] * 3] * 2]
    assert sorted(ends.tolist()) == expected


def test_hidden_files_and_links_in_a_folder_are_left_out(tmp_path):
    """An image that is counted twice could be in the training and the test set. A loop
    of links ends. The folder itself may be a link.
    """
    shapes = draw(tmp_path, THREE_EACH) / "shapes"
    hidden = ("../elsewhere/0.png", ".git/0.png", "__MACOSX/0.png", "a/._0.png")
    picture = flat_picture(200, 8, "L")
    write_files(shapes, dict.fromkeys((*hidden, "a/c/.x/9.png"), picture))
    (shapes / "a/back").symlink_to(shapes)
    (shapes / "c").symlink_to(tmp_path / "elsewhere")
    (shapes / "a/again.png").symlink_to(shapes / "a/0.png")
    (shapes / "b/out.png").symlink_to(tmp_path / "elsewhere/0.png")
    (shapes / "b/nowhere.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "linked").symlink_to(shapes)
    for folder in ("shapes", "linked"):
        raw = read_pictures(tmp_path, folder=folder)
        assert sorted(brightness(all_images(raw))) == [0, 1, 2, 40, 41, 42]
        assert raw.class_names == ("a", "b")


def test_grey_pixels_of_more_than_8_bits_are_refused(tmp_path):
    """Pillow would cut them to 255."""
    shapes = draw(tmp_path, THREE_EACH) / "shapes"
    Image.fromarray(np.full((8, 8), 300, np.uint16)).save(shapes / "a/deep.png")
    for channels in (1, 3):
        message = refusal(read_pictures, tmp_path, channels=channels)
        assert "not of 8 bits" in message


def test_pictures_end_as_those_of_torchvision():
    from torchvision.datasets.folder import IMG_EXTENSIONS  # takes seconds

    assert ENDINGS == IMG_EXTENSIONS


COUNT_PICTURES = """
import sys
from pathlib import Path
from dpfedbench.data.image_folder import holds
options = {"folder": "shapes", "size": 8, "channels": 1, "test_images": 2}
print(holds(Path(sys.argv[1]), **options))
print([name for name in ("torch", "torchvision", "PIL") if name in sys.modules])
"""


def test_plan_counts_pictures_without_torch(tmp_path):
    """A plan counts the pictures of each folder, and torchvision takes seconds."""
    draw(tmp_path, THREE_EACH)
    command = [sys.executable, "-c", COUNT_PICTURES, str(tmp_path)]
    counts, heavy = subprocess.check_output(command, text=True).splitlines()
    assert counts == "records 2/4"
    assert heavy == "[]"
