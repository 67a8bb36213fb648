"""CIFAR-10 and CIFAR-FS: tiny copies in each published form, and bad copies."""

import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data.cifar import (
    CLASSES,
    SPLIT_CLASSES,
    read_cifar_10,
    read_cifar_10_jpeg,
    read_cifar_fs,
)

from .conftest import refusal, split_counts, write_files

EXAMPLES = {"train": 5, "test": 2}
# CIFAR-100's fine label names (Krizhevsky 2009), in the order of their labels.
_TEXT = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
NAMES = _TEXT.split()


def write_archive(path, files, unpacked=False):
    """Write these files as a .tar.gz, or into the folder beside it."""
    if unpacked:
        write_files(path.parent, files)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def coloured(labels, green):
    """Return images [n, 3 x 32 x 32]: red is the label, blue the row."""
    images = np.zeros((len(labels), 3, 32, 32), np.uint8)
    images[:, 0] = np.reshape(labels, (-1, 1, 1))
    images[:, 1] = np.reshape(green, (-1, 1, 1))
    images[:, 2] = np.arange(32)[:, None]
    return images.reshape(len(labels), -1)


def batches():
    """Return images and labels by file of CIFAR-10. Green is the number of the file."""
    content = {}
    for number in range(5):
        labels = np.arange(9, -1, -1)
        content[f"data_batch_{number + 1}"] = coloured(labels, number), labels
    labels = np.repeat(np.arange(9, -1, -1), 2)
    content["test_batch"] = coloured(labels, 5), labels
    return content


def write_cifar_10(folder, form, content, unpacked=False):
    files = {}
    for name, (images, labels) in content.items():
        if form == "python":
            data = pickle.dumps({"data": images, "labels": list(labels)}, protocol=2)
            files[f"cifar-10-batches-py/{name}"] = data
        else:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], images], 1)
            files[f"cifar-10-batches-bin/{name}.bin"] = rows.tobytes()
    write_archive(folder / f"cifar-10-{form}.tar.gz", files, unpacked)


def read_small(folder):
    return read_cifar_10(folder, folder, examples=EXAMPLES, check_md5=False)


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar_10_is_read_in_both_published_forms(tmp_path, form, unpacked):
    write_cifar_10(tmp_path / "cifar-10", form, batches(), unpacked)
    raw = read_small(tmp_path)
    assert raw.class_names == CLASSES
    assert raw.train_images.shape == (50, 32, 32, 3)
    assert (raw.train_images[..., 0] == raw.train_labels[:, None, None]).all()
    assert (raw.train_images[:, 0, 0, 1] == np.repeat(np.arange(5), 10)).all()
    assert (raw.test_images[..., 2] == np.arange(32)[:, None]).all()
    assert (raw.test_labels == np.repeat(np.arange(9, -1, -1), 2)).all()


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_batch_3": (coloured([1] * 10, 0)[:, :9], [1] * 10)}, "form of CIFAR"),
        ({"data_batch_2": (coloured([3] * 10, 0), [3] * 10)}, "train/airplane has 4"),
        ({"test_batch": (coloured([1] * 20, 0), [10] * 20)}, "label 10"),
    ],
)
def test_cifar_10_with_other_content_is_refused(tmp_path, form, change, message):
    write_cifar_10(tmp_path, form, batches() | change)
    assert message in refusal(read_small, tmp_path)


def fine_labels():
    """Return CIFAR-100's files with two training images and one test image a class.

    Green is 100 + example.
    """
    files = {"meta": {"fine_label_names": NAMES}}
    for part, examples in (("train", (0, 1)), ("test", (2,))):
        labels = np.tile(np.arange(99, -1, -1), len(examples))
        data = coloured(labels, 100 + np.repeat(examples, 100))
        files[part] = {"data": data, "fine_labels": labels.tolist()}
    return files


def write_cifar_100(folder, content, unpacked=False):
    files = {
        f"cifar-100-python/{name}": pickle.dumps(values, protocol=2)
        for name, values in content.items()
    }
    write_archive(folder / "cifar-100-python.tar.gz", files, unpacked)


def test_cifar_fs_split_has_all_hundred_classes_once():
    sizes = {split: len(names) for split, names in SPLIT_CLASSES.items()}
    assert sizes == {"train": 64, "validation": 16, "test": 20}
    split_names = [name for names in SPLIT_CLASSES.values() for name in names]
    assert sorted(split_names) == sorted(NAMES)


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
def test_cifar_fs_images_go_to_their_class_in_order(tmp_path, unpacked):
    write_cifar_100(tmp_path / "cifar-100", fine_labels(), unpacked)
    raw = read_cifar_fs(tmp_path, tmp_path, examples=3, check_md5=False)
    assert raw.images.shape == (100, 3, 32, 32, 3)
    assert raw.class_names == tuple(NAMES)
    assert (raw.images[..., 0] == np.arange(100)[:, None, None, None]).all()
    assert (raw.images[..., 1] == 100 + np.arange(3)[:, None, None]).all()
    assert (raw.images[..., 2] == np.arange(32)[:, None]).all()
    assert split_counts(raw) == [64, 16, 20]
    assert raw.splits[NAMES.index("worm")] == "test"


ZEROS = np.zeros((100, 3 * 32 * 32), np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"meta": {"fine_label_names": ["cat", *NAMES[1:]]}}, "classes are not"),
        ({"test": {"data": ZEROS, "fine_labels": [0] * 100}}, "3 images"),
        ({"test": {"data": ZEROS[:, :9], "fine_labels": [0] * 100}}, "not the form"),
    ],
)
def test_cifar_fs_with_other_content_is_refused(tmp_path, change, message):
    write_cifar_100(tmp_path, fine_labels() | change)
    options = {"examples": 3, "check_md5": False}
    assert message in refusal(read_cifar_fs, tmp_path, tmp_path, **options)


def test_cifar_archive_has_to_be_the_published_one_and_whole(tmp_path):
    write_cifar_10(tmp_path, "binary", batches())
    write_cifar_100(tmp_path, fine_labels())
    for read in (read_cifar_10, read_cifar_fs):
        assert "not the published archive" in refusal(read, tmp_path, tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:200])
    for read in (read_cifar_10, read_cifar_fs):
        assert "damaged" in refusal(read, tmp_path, tmp_path, check_md5=False)


def draw_pictures(folder):
    """Draw `train/CLASS/N.jpg` and `test/CLASS/N.jpg` in grey of value 20 x label."""
    for split, count in EXAMPLES.items():
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            picture = Image.new("RGB", (32, 32), (20 * label,) * 3)
            for number in range(count):
                picture.save(folder / split / name / f"{number:04}.jpg")
    return folder


@pytest.mark.parametrize("form", ["zip", "folder", "bare"])
def test_cifar_10_pictures_are_read(tmp_path, form):
    local = tmp_path / "local" / "cifar-10"
    if form == "zip":
        source = draw_pictures(tmp_path / "drawn")
        local.mkdir(parents=True)
        with zipfile.ZipFile(local / "cifar-10-images.zip", "w") as archive:
            for file in sorted(source.rglob("*.jpg")):
                archive.write(file, file.relative_to(source))
    elif form == "folder":
        draw_pictures(local / "cifar-10-images")
    else:
        draw_pictures(local)
    raw = read_cifar_10_jpeg(tmp_path / "local", tmp_path, examples=EXAMPLES)
    assert raw.train_images.shape == (50, 32, 32, 3)
    assert raw.test_images.shape == (20, 32, 32, 3)
    expected = 20.0 * raw.train_labels[:, None, None, None]
    assert np.abs(raw.train_images - expected).max() <= 2


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda file: file.unlink(), "train/cat has 4"),
        (lambda file: Image.new("RGB", (31, 32)).save(file), "is 31×32, not 32×32"),
    ],
)
def test_cifar_10_pictures_that_are_damaged_are_refused(tmp_path, harm, message):
    folder = draw_pictures(tmp_path / "cifar-10" / "cifar-10-images")
    harm(folder / "train" / "cat" / "0001.jpg")
    assert message in refusal(read_cifar_10_jpeg, tmp_path, tmp_path, examples=EXAMPLES)
