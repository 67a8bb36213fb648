"""CIFAR-10 and CIFAR-FS: tiny copies in each published form, and bad copies."""

import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

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
from dpfedbench.errors import BenchError

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


def write_archive(path: Path, files: dict[str, bytes], *, unpacked: bool) -> None:
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


Batches = dict[str, tuple[np.ndarray, list[int]]]


def batches() -> Batches:
    """Return images [10 or 20, 3 x 32 x 32] and labels by file.

    Red is the label, green the file, blue the row.
    """
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    content = {}
    for number, name in enumerate(names):
        examples = 2 if name == "test_batch" else 1
        labels = np.repeat(np.arange(9, -1, -1), examples)
        images = np.zeros((len(labels), 3, 32, 32), np.uint8)
        images[:, 0] = labels[:, None, None]
        images[:, 1] = number
        images[:, 2] = np.arange(32)[:, None]
        content[name] = images.reshape(len(labels), -1), labels.tolist()
    return content


def write_cifar_10(
    folder: Path, form: str, content: Batches, *, unpacked: bool = False
) -> Path:
    files = {}
    for name, (images, labels) in content.items():
        if form == "python":
            data = pickle.dumps({"data": images, "labels": labels}, protocol=2)
            files[f"cifar-10-batches-py/{name}"] = data
        else:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], images], 1)
            files[f"cifar-10-batches-bin/{name}.bin"] = rows.tobytes()
    path = folder / f"cifar-10-{form}.tar.gz"
    write_archive(path, files, unpacked=unpacked)
    return path


def read_small(folder: Path) -> Any:
    return read_cifar_10(folder, folder, examples=EXAMPLES, check_md5=False)


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar_10_is_read_in_both_published_forms(
    tmp_path: Path, form: str, unpacked: bool
) -> None:
    write_cifar_10(tmp_path / "cifar-10", form, batches(), unpacked=unpacked)
    raw = read_small(tmp_path)
    assert raw.class_names == CLASSES
    assert raw.train_images.shape == (50, 32, 32, 3)
    assert (raw.train_images[..., 0] == raw.train_labels[:, None, None]).all()
    assert (raw.train_images[:, 0, 0, 1] == np.repeat(np.arange(5), 10)).all()
    assert (raw.test_images[..., 2] == np.arange(32)[:, None]).all()
    assert (raw.test_labels == np.repeat(np.arange(9, -1, -1), 2)).all()


def cut_images(content: Batches) -> None:
    images, labels = content["data_batch_3"]
    content["data_batch_3"] = images[:, :9], labels


def repeat_a_label(content: Batches) -> None:
    content["data_batch_2"] = content["data_batch_2"][0], [3] * 10


def add_a_label(content: Batches) -> None:
    content["test_batch"] = content["test_batch"][0], [10] * 20


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda content: content.pop("test_batch"), "it has no test_batch"),
        (cut_images, "data_batch_3: it has not the form of CIFAR-10"),
        (repeat_a_label, "not every class has 5 images: train/airplane has 4"),
        (add_a_label, "label 10"),
    ],
)
def test_cifar_10_with_other_content_is_refused(
    tmp_path: Path, form: str, harm: Any, message: str
) -> None:
    content = batches()
    harm(content)
    write_cifar_10(tmp_path, form, content)
    assert message in refusal(read_small, tmp_path)


def fine_labels() -> dict[str, Any]:
    """Return CIFAR-100's files with two training images and one test image a class.

    Red is the label, green 100 + example, blue the row.
    """
    files: dict[str, Any] = {"meta": {"fine_label_names": NAMES}}
    for part, examples in (("train", (0, 1)), ("test", (2,))):
        labels = np.tile(np.arange(99, -1, -1), len(examples))
        images = np.zeros((len(labels), 3, 32, 32), dtype=np.uint8)
        images[:, 0] = labels[:, None, None]
        images[:, 1] = 100 + np.repeat(examples, 100)[:, None, None]
        images[:, 2] = np.arange(32)[:, None]
        data = images.reshape(len(labels), -1)
        files[part] = {"data": data, "fine_labels": labels.tolist()}
    return files


def write_cifar_100(folder: Path, content: Any, *, unpacked: bool = False) -> Path:
    files = {
        f"cifar-100-python/{name}": pickle.dumps(values, protocol=2)
        for name, values in content.items()
    }
    path = folder / "cifar-100-python.tar.gz"
    write_archive(path, files, unpacked=unpacked)
    return path


def test_cifar_fs_split_has_all_hundred_classes() -> None:
    sizes = {split: len(names) for split, names in SPLIT_CLASSES.items()}
    assert sizes == {"train": 64, "validation": 16, "test": 20}
    split_names = [name for names in SPLIT_CLASSES.values() for name in names]
    assert len(NAMES) == 100
    assert sorted(split_names) == sorted(NAMES)


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
def test_cifar_fs_images_go_to_their_class_in_order(
    tmp_path: Path, unpacked: bool
) -> None:
    write_cifar_100(tmp_path / "cifar-100", fine_labels(), unpacked=unpacked)
    raw = read_cifar_fs(tmp_path, tmp_path, examples=3, check_md5=False)
    assert raw.images.shape == (100, 3, 32, 32, 3)
    assert raw.class_names == tuple(NAMES)
    assert (raw.images[..., 0] == np.arange(100)[:, None, None, None]).all()
    assert (raw.images[..., 1] == 100 + np.arange(3)[:, None, None]).all()
    assert (raw.images[..., 2] == np.arange(32)[:, None]).all()
    assert split_counts(raw) == [64, 16, 20]
    assert raw.splits[NAMES.index("worm")] == "test"


def with_test(content: Any, images: np.ndarray) -> Any:
    return content | {"test": {"data": images, "fine_labels": [0] * 100}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda files: {"meta": files["meta"], "train": files["train"]},
            "it has no test",
        ),
        (
            lambda files: files | {"meta": {"fine_label_names": ["cat", *NAMES[1:]]}},
            "classes are not",
        ),
        (lambda files: files | {"meta": {}}, "fine_label_names"),
        (lambda files: with_test(files, files["test"]["data"]), "3 images"),
        (
            lambda files: with_test(files, files["test"]["data"][:, :9]),
            "test: it has not the form of CIFAR-100",
        ),
    ],
)
def test_cifar_fs_with_other_content_is_refused(
    tmp_path: Path, change: Any, message: str
) -> None:
    write_cifar_100(tmp_path, change(fine_labels()))
    assert message in refusal(
        read_cifar_fs, tmp_path, tmp_path, examples=3, check_md5=False
    )


@pytest.mark.parametrize(
    ("read", "examples", "write"),
    [
        (
            read_cifar_10,
            EXAMPLES,
            lambda folder: write_cifar_10(folder, "binary", batches()),
        ),
        (read_cifar_fs, 3, lambda folder: write_cifar_100(folder, fine_labels())),
    ],
    ids=["cifar-10", "cifar-fs"],
)
def test_cifar_archive_has_to_be_the_published_one_and_whole(
    tmp_path: Path, read: Any, examples: Any, write: Any
) -> None:
    path = write(tmp_path)
    with pytest.raises(BenchError, match="not the published archive"):
        read(tmp_path, tmp_path, examples=examples)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BenchError, match="damaged"):
        read(tmp_path, tmp_path, examples=examples, check_md5=False)


def draw_pictures(folder: Path) -> Path:
    """Draw `train/CLASS/N.jpg` and `test/CLASS/N.jpg` in grey of value 20 x label."""
    for split, count in EXAMPLES.items():
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            picture = Image.new("RGB", (32, 32), (20 * label,) * 3)
            for number in range(count):
                picture.save(folder / split / name / f"{number:04}.jpg")
    return folder


@pytest.mark.parametrize("form", ["zip", "folder", "bare"])
def test_cifar_10_pictures_are_read(tmp_path: Path, form: str) -> None:
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
        (lambda file: file.unlink(), "not every class has 5 images: train/cat has 4"),
        (lambda file: file.write_bytes(b"no picture"), "train/cat/0001.jpg is damaged"),
        (lambda file: Image.new("RGB", (31, 32)).save(file), "is 31×32, not 32×32"),
    ],
)
def test_cifar_10_pictures_that_are_damaged_are_refused(
    tmp_path: Path, harm: Any, message: str
) -> None:
    folder = draw_pictures(tmp_path / "cifar-10" / "cifar-10-images")
    harm(folder / "train" / "cat" / "0001.jpg")
    assert message in refusal(read_cifar_10_jpeg, tmp_path, tmp_path, examples=EXAMPLES)


def test_cifar_10_folder_of_pictures_names_the_other_data_set(tmp_path: Path) -> None:
    write_files(tmp_path, {"cifar-10/cifar-10-images.zip": b""})
    message = refusal(read_cifar_10, tmp_path, tmp_path / "download")
    assert "is the data set cifar-10-jpeg" in message
    message = refusal(read_cifar_10_jpeg, None, tmp_path)
    assert "take the data set cifar-10" in message
