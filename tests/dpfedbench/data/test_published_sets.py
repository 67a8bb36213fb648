"""Readers of published data sets, on tiny copies in each layout, and on bad copies."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from dpfedbench.data import cifar, mini_imagenet, mnist, omniglot, tiny_imagenet
from dpfedbench.data.registry import prepare

from .conftest import (
    flat_picture,
    refusal,
    split_counts,
    write_files,
    write_tar,
    write_zip,
)

# The tests read copies with few examples
COUNTS = {
    "train": (2, 1, 0, 1, 1, 1, 1, 1, 1, 3),
    "test": (1, 0, 0, 0, 0, 0, 0, 0, 0, 2),
}
"""Records of each label of MNIST."""
PARTS = {"images_background": 3, "images_evaluation": 2}
"""Characters of Omniglot."""
NAMES = ("n00", "n01", "n02", "n03", "n04")
SPLITS = {"train": NAMES[:3], "validation": NAMES[3:4], "test": NAMES[4:]}
"""Classes of mini-ImageNet and Tiny-ImageNet."""
PUBLISHED_MNIST = mnist._MNIST.checksums
PUBLISHED_FASHION_MNIST = mnist._FASHION_MNIST.checksums
PUBLISHED_SPLITS = mini_imagenet.SPLIT_CLASSES


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    for name, brightness in (("_MNIST", 0), ("_FASHION_MNIST", 7)):
        checksums = {
            part: md5(content) for part, content in mnist_content(brightness).items()
        }
        facts = dataclasses.replace(getattr(mnist, name), checksums=checksums)
        monkeypatch.setattr(mnist, name, facts)
    monkeypatch.setattr(omniglot, "PARTS", PARTS)
    monkeypatch.setattr(omniglot, "SPLIT_COUNTS", (3, 1, 1))
    monkeypatch.setattr(mini_imagenet, "SPLIT_CLASSES", SPLITS)
    source = dataclasses.replace(mini_imagenet._SOURCE, parts=mini_imagenet._parts())
    monkeypatch.setattr(mini_imagenet, "_SOURCE", source)
    monkeypatch.setattr(mini_imagenet, "EXAMPLES", 12)
    counts = dict.fromkeys(tiny_imagenet.COUNTS, (5, 12))
    monkeypatch.setattr(tiny_imagenet, "COUNTS", counts)
    monkeypatch.setattr(cifar, "EXAMPLES", {"train": 5, "test": 2})


# MNIST and Fashion-MNIST


def idx(values):
    """Encode an IDX file: two zeros, type, number of axes, lengths of axes, values."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return head + values.tobytes()


def split_content(split, brightness=0):
    """Return images whose pixels show record and column, and labels."""
    labels = np.repeat(np.arange(10), COUNTS[split])[::-1].astype(np.uint8)
    columns = np.broadcast_to(np.arange(28) % 20, (28, 28))
    images = np.arange(len(labels))[:, None, None] * 20 + columns + brightness
    return images.astype(np.uint8), labels


def mnist_content(brightness=0):
    """Return the four files, by part. The labels are equal at each brightness."""
    content = {}
    for part in mnist.FILES:
        split, _, kind = part.partition("_")
        content[part] = idx(split_content(split, brightness)[kind == "labels"])
    return content


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def write_mnist(folder, packed=True, brightness=0):
    content = mnist_content(brightness)
    files = {name: content[part] for part, name in mnist.FILES.items()}
    if packed:
        files = {f"{name}.gz": gzip.compress(files[name]) for name in files}
    return write_files(folder, files)


@pytest.mark.parametrize(
    ("read", "folder", "packed"),
    [
        (mnist.read_mnist, "mnist", True),
        (mnist.read_mnist, "MNIST/raw", False),
        (mnist.read_mnist, ".", True),
        (mnist.read_fashion_mnist, "FashionMNIST", False),
    ],
)
def test_mnist_is_read_from_its_usual_folders(tmp_path, read, folder, packed):
    brightness = 0 if read is mnist.read_mnist else 7
    write_mnist(tmp_path / "local" / folder, packed, brightness)
    raw = read(tmp_path / "local", tmp_path / "download")
    for split, images, labels in raw.blocks():
        expected_images, expected_labels = split_content(split, brightness)
        assert np.array_equal(images[..., 0], expected_images)
        assert np.array_equal(labels, expected_labels)
    assert raw.class_names[9] in ("nine", "Ankle boot")
    assert not (tmp_path / "download").exists()


TRAIN_IMAGES, TRAIN_LABELS = split_content("train")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(TRAIN_IMAGES))[:-8]),
        ("train-images-idx3-ubyte", idx(TRAIN_IMAGES.reshape(12, 14, 56))),
        ("train-labels-idx1-ubyte", idx(TRAIN_LABELS // 2)),
        ("train-labels-idx1-ubyte", idx(TRAIN_LABELS)[:2]),
        ("train-labels-idx1-ubyte.gz", b""),
        ("train-images-idx3-ubyte", idx(255 - TRAIN_IMAGES)),
    ],
    ids=["cut", "other shape", "other labels", "cut header", "empty", "other pixels"],
)
def test_mnist_file_that_is_damaged_is_refused_and_nothing_is_written(
    tmp_path, file, content
):
    folder = write_mnist(tmp_path / "mnist", packed=file.endswith("gz"))
    (folder / file).write_bytes(content)
    message = refusal(prepare, "mnist", tmp_path / "out", tmp_path)
    assert message.startswith(f"{folder / file} is damaged or not MNIST's (")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("read", "folder", "brightness"),
    [
        (mnist.read_mnist, "MNIST/raw", 0),
        (mnist.read_fashion_mnist, "FashionMNIST/raw", 7),
    ],
)
@pytest.mark.parametrize("part", list(mnist.FILES))
def test_mnist_files_come_from_one_folder(tmp_path, read, folder, brightness, part):
    """MNIST and Fashion-MNIST have equal file names. Here the other set is complete in
    the local folder, and one of the four files is missing in the set's own.
    """
    write_mnist(tmp_path, packed=False, brightness=7 - brightness)
    write_mnist(tmp_path / folder, packed=False, brightness=brightness)
    (tmp_path / folder / mnist.FILES[part]).unlink()
    message = refusal(read, tmp_path, tmp_path / "download")
    assert message.startswith(f"{tmp_path / folder} has only 3 of the 4 parts of")
    assert mnist.FILES[part] in message


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_folder_with_a_file_of_fashion_mnist_is_refused(tmp_path, packed):
    """Labels and shapes are right; the checksum alone tells the pictures apart."""
    folder = write_mnist(tmp_path / "mnist", packed)
    name = mnist.FILES["test_images"] + (".gz" if packed else "")
    other = write_mnist(tmp_path / "other", packed, brightness=7)
    (folder / name).write_bytes((other / name).read_bytes())
    message = refusal(mnist.read_mnist, tmp_path, tmp_path / "download")
    assert message.startswith(f"{folder / name} is a file of Fashion-MNIST")


def test_mnist_checksums_are_those_of_files_that_differ():
    """The MD5 of the labels of MNIST's test part, as many public loaders state it."""
    checksums = [*PUBLISHED_MNIST.values(), *PUBLISHED_FASHION_MNIST.values()]
    assert len(set(checksums)) == 8
    assert PUBLISHED_MNIST["test_labels"] == "27ae3e4e09519cfbb04c329615203637"


# Omniglot

DRAWING = "images_background/Alphabet_0/character01/0001_01.png"


def drawing(character, number, size=105):
    """Return a one-bit drawing as published: dark strokes (0) on light (1)."""
    pixels = np.full((size, size), 255, dtype=np.uint8)
    row = 10 + 15 * character
    column = 5 + 4 * number
    pixels[row : row + 12, column : column + 12] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).convert("1").save(file, "png")
    return file.getvalue()


def drawings(part):
    """Return the files of a part, with two alphabets."""
    return {
        f"{part}/Alphabet_{character % 2}/character{character + 1:02d}"
        f"/{character + 1:04d}_{number + 1:02d}.png": drawing(character, number)
        for character in range(PARTS[part])
        for number in range(20)
    }


def write_omniglot(folder, change=dict):
    """Write both archives. `change` is applied to the files of the background part."""
    for part in PARTS:
        members = drawings(part) | {f"__MACOSX/{DRAWING}": b"not a drawing"}
        if part == "images_background":
            members = change(members)
        write_zip(folder / "omniglot" / f"{part}.zip", members)
    return folder


def reverse(members):
    return dict(reversed(members.items()))


def test_omniglot_strokes_are_bright_and_in_their_position(tmp_path):
    """The first block of the second class fills rows 40 to 52 and columns 5 to 17 of
    105. Pixel (12, 3) of 28 lies inside, pixel (6, 3) above.
    """
    raw = omniglot.read_omniglot(write_omniglot(tmp_path), tmp_path / "download")
    assert raw.images.shape == (5, 20, 28, 28, 1)
    names = ("Alphabet_0/character01", "Alphabet_0/character03")
    assert raw.class_names[:2] == tuple(f"background/{name}" for name in names)
    assert np.median(raw.images) == 0
    assert raw.images.max() == 255
    assert raw.images[1, 0, 12, 3, 0] > 200
    assert raw.images[1, 0, 6, 3, 0] == 0


def test_omniglot_does_not_depend_on_the_order_of_files(tmp_path):
    raw = omniglot.read_omniglot(write_omniglot(tmp_path / "zips"), tmp_path)
    write_omniglot(tmp_path / "reversed", reverse)
    for part in PARTS:
        write_files(tmp_path / "folders" / "omniglot", reverse(drawings(part)))
    # The last one: files that lie in the local folder itself.
    for folder in ("reversed", "folders", "zips/omniglot"):
        copy = omniglot.read_omniglot(tmp_path / folder, tmp_path)
        assert np.array_equal(raw.images, copy.images)
        assert (raw.class_names, raw.splits) == (copy.class_names, copy.splits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: {**files, DRAWING: drawing(0, 0, 64)}, "64×64, not 105×105"),
        (lambda files: dict(list(files.items())[1:]), "character01 has 19"),
    ],
)
def test_omniglot_archive_with_other_content_is_refused(tmp_path, change, message):
    write_omniglot(tmp_path, change)
    text = refusal(omniglot.read_omniglot, tmp_path, tmp_path / "download")
    assert str(tmp_path / "omniglot" / "images_background.zip") in text
    assert message in text


def test_omniglot_parts_come_from_one_folder(tmp_path):
    write_omniglot(tmp_path)
    part = tmp_path / "omniglot/images_evaluation.zip"
    part.rename(tmp_path / "images_evaluation.zip")
    message = refusal(omniglot.read_omniglot, tmp_path, tmp_path / "download")
    assert message.startswith(f"{tmp_path / 'omniglot'} has only 1 of the 2 parts")


# mini-ImageNet and Tiny-ImageNet: pictures of flat colours

VALUES = 20 + 40 * np.arange(5)[:, None] + 2 * np.arange(12)
"""Value of each image, by class and example."""


def pictures(pattern, names=NAMES, examples=12, size=64, kind="jpeg"):
    """Return the files of the first examples of classes; `pattern` has the paths."""
    return {
        pattern.format(name, example): flat_picture(
            VALUES[NAMES.index(name), example], size, kind=kind
        )
        for name in names
        for example in range(examples)
    }


def check_pictures(raw, size, error):
    assert raw.images.shape == (5, 12, size, size, 3)
    assert np.abs(raw.images - VALUES[..., None, None, None]).max() <= error
    assert raw.class_names == NAMES
    assert split_counts(raw) == [3, 1, 1]


def check_mini_imagenet(local):
    raw = mini_imagenet.read_mini_imagenet(local, Path("unused"))
    check_pictures(raw, size=84, error=0)
    assert raw.splits[2:] == ("train", "validation", "test")


def test_mini_imagenet_split_is_of_64_16_and_20_classes_that_differ():
    """The house finch is the first of Ravi and Larochelle's training classes, the goose
    one for validation and the golden retriever one for testing.
    """
    sizes = {split: len(names) for split, names in PUBLISHED_SPLITS.items()}
    assert sizes == {"train": 64, "validation": 16, "test": 20}
    assert len(set().union(*PUBLISHED_SPLITS.values())) == 100
    known = {"train": "n01532829", "validation": "n01855672", "test": "n02099601"}
    assert all(name in PUBLISHED_SPLITS[split] for split, name in known.items())


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_mini_imagenet_is_read_from_pickles(tmp_path, validation):
    """The images are in another order than that of the classes."""
    files = {"train": "train", "validation": validation, "test": "test"}
    for split, names in SPLITS.items():
        values = VALUES[[NAMES.index(name) for name in names]].T.reshape(-1, 1, 1, 1)
        rows = {
            name: list(range(index, values.size, len(names)))
            for index, name in reversed(list(enumerate(names)))
        }
        images = np.broadcast_to(values, (values.size, 84, 84, 3)).astype(np.uint8)
        content = pickle.dumps({"image_data": images, "class_dict": rows})
        name = f"mini-imagenet/mini-imagenet-cache-{files[split]}.pkl"
        write_files(tmp_path, {name: content})
    check_mini_imagenet(tmp_path)


def test_mini_imagenet_is_read_from_folders_of_classes_or_splits(tmp_path):
    layout = {"pattern": "{}/{:02}.png", "size": 100, "kind": "png"}
    write_files(tmp_path / "classes/mini-imagenet", pictures(**layout))
    check_mini_imagenet(tmp_path / "classes")
    for split, names in SPLITS.items():
        write_files(tmp_path / "splits" / split, pictures(**layout, names=names))
    check_mini_imagenet(tmp_path / "splits")
    (tmp_path / "splits/test/n04/03.png").unlink()
    message = refusal(check_mini_imagenet, tmp_path / "splits")
    assert "not every class has 12 images: n04 has 11" in message


def test_mini_imagenet_splits_come_from_one_folder(tmp_path):
    """A folder `test` of something else beside the classes is not looked at; a split
    that lies elsewhere is missed.
    """
    layout = {"pattern": "{}/{:02}.png", "size": 100, "kind": "png"}
    write_files(tmp_path / "test" / "n04", {"other.png": b""})
    write_files(tmp_path / "mini-imagenet", pictures(**layout))
    check_mini_imagenet(tmp_path)
    (tmp_path / "mini-imagenet/n04").rename(tmp_path / "n04")
    message = refusal(check_mini_imagenet, tmp_path)
    assert "mini-imagenet has only 2 of the 3 parts of mini-ImageNet (test" in message


def test_tiny_imagenet_has_its_validation_images_last(tmp_path):
    """The release has eleven training images a class, so that the order of texts is not
    the order of numbers, and one validation image. One of these is grey.
    """
    files = pictures("train/{0}/images/{0}_{1}.JPEG", examples=11)
    files |= {"test/images/test_0.JPEG": flat_picture(0, 64), "wnids.txt": b"n00"}
    lines = []
    for number, (name, value) in enumerate(zip(NAMES, VALUES[:, 11], strict=True)):
        picture = f"val_{4 - number}.JPEG"
        mode = "L" if number == 0 else "RGB"
        files[f"val/images/{picture}"] = flat_picture(value, 64, mode, "jpeg")
        lines.append(f"{picture}\t{name}\t0\t32\t44\t62")
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    members = {f"tiny-imagenet-200/{name}": file for name, file in files.items()}
    write_zip(tmp_path / "tiny-imagenet/tiny-imagenet-200.zip", members)
    raw = tiny_imagenet.read_tiny_imagenet(tmp_path, tmp_path / "download")
    check_pictures(raw, size=64, error=1)  # JPEG's colour transform rounds


@pytest.mark.parametrize("size", [64, 32])
def test_tiny_imagenet_subset_is_read(tmp_path, size):
    write_files(tmp_path / "tiny-imagenet-100", pictures("{0}/{0}_{1}.JPEG"))
    raw = tiny_imagenet.read_tiny_imagenet_100(tmp_path, tmp_path, size=size)
    check_pictures(raw, size, error=1)


# CIFAR-10 and CIFAR-FS

# CIFAR-100's fine labels are in the order of their names (Krizhevsky 2009).
FINE_NAMES = sorted(name for names in cifar.SPLIT_CLASSES.values() for name in names)


def labelled(key, labels, green):
    """Return a file of images: red is the label, green is given, blue is the row."""
    red = np.reshape(labels, (-1, 1, 1))
    green = np.reshape(green, (-1, 1, 1))
    channels = np.broadcast_arrays(red, green, np.mgrid[:32, :32][0])
    data = np.stack(channels, axis=1).astype(np.uint8).reshape(len(labels), -1)
    return {"data": data, key: labels.tolist()}


TEN = np.arange(9, -1, -1)
CIFAR_10 = {
    "batches.meta": {"label_names": list(cifar.CLASSES)},
    **{f"data_batch_{file}": labelled("labels", TEN, file) for file in range(1, 6)},
    "test_batch": labelled("labels", TEN, 6),
}
"""Green is the number of the file."""
HUNDRED = np.arange(99, -1, -1)
CIFAR_100 = {
    "meta": {"fine_label_names": FINE_NAMES},
    "train": labelled("fine_labels", np.tile(HUNDRED, 2), np.repeat([0, 1], 100)),
    "test": labelled("fine_labels", HUNDRED, 2),
}
"""Two training images and one test image a class. Green is the example."""


@pytest.fixture
def publish(monkeypatch):
    """Return a function that writes a release, whose checksums torchvision expects.

    It returns the archive, or with `unpacked` the folder.
    """

    def write(folder, kind, contents, unpacked):
        files = {
            name: pickle.dumps(content, protocol=2)
            for name, content in contents.items()
        }
        for listed in ("train_list", "test_list"):
            pairs = [[name, md5(files[name])] for name, _ in getattr(kind, listed)]
            monkeypatch.setattr(kind, listed, pairs)
        monkeypatch.setitem(kind.meta, "md5", md5(files[kind.meta["filename"]]))
        if unpacked:
            return write_files(folder / kind.base_folder, files)
        members = {f"{kind.base_folder}/{name}": files[name] for name in files}
        path = write_tar(folder / kind.filename, members)
        monkeypatch.setattr(kind, "tgz_md5", md5(path.read_bytes()))
        return path

    return write


def test_cifar_10_is_read_from_its_archive(tmp_path, publish):
    publish(tmp_path / "cifar-10", CIFAR10, CIFAR_10, unpacked=False)
    raw = cifar.read_cifar_10(tmp_path, tmp_path / "download")
    assert raw.class_names == cifar.CLASSES
    assert raw.train_images.shape == (50, 32, 32, 3)
    assert (raw.train_images[..., 0] == raw.train_labels[:, None, None]).all()
    assert (raw.train_images[:, 0, 0, 1] == np.repeat(np.arange(1, 6), 10)).all()
    assert (raw.test_images[..., 1] == 6).all()
    assert (raw.test_images[..., 2] == np.arange(32)[:, None]).all()
    assert (raw.test_labels == TEN).all()


def test_cifar_fs_images_go_to_their_class_in_order(tmp_path, publish):
    publish(tmp_path / "cifar-100", CIFAR100, CIFAR_100, unpacked=True)
    raw = cifar.read_cifar_fs(tmp_path, tmp_path / "download")
    class_example_row = np.indices((100, 3, 32, 32))[:3]
    assert np.array_equal(raw.images, np.moveaxis(class_example_row, 0, -1))
    assert raw.class_names == tuple(FINE_NAMES)
    assert split_counts(raw) == [64, 16, 20]
    assert raw.splits[FINE_NAMES.index("worm")] == "test"


def test_cifar_file_or_archive_with_another_checksum_is_refused(tmp_path, publish):
    path = publish(tmp_path, CIFAR10, CIFAR_10, unpacked=False)
    path.write_bytes(path.read_bytes()[:-1])
    message = refusal(cifar.read_cifar_10, tmp_path, tmp_path)
    assert "its checksum is not the published one" in message
    folder = publish(tmp_path, CIFAR100, CIFAR_100, unpacked=True)
    (folder / "test").write_bytes(b"another")
    message = refusal(cifar.read_cifar_fs, tmp_path, tmp_path)
    assert message.startswith(f"{folder} is damaged or not CIFAR")


def test_cifar_10_pictures_are_read(tmp_path):
    files = {
        f"{split}/{name}/{number}.jpg": flat_picture(20 * label, 32, kind="jpeg")
        for split, count in cifar.EXAMPLES.items()
        for label, name in enumerate(cifar.CLASSES)
        for number in range(count)
    }
    write_files(tmp_path / "cifar-10" / "cifar-10-images", files)
    raw = cifar.read_cifar_10_jpeg(tmp_path, tmp_path / "download")
    for (_, images, labels), count in zip(raw.blocks(), (50, 20), strict=True):
        assert images.shape == (count, 32, 32, 3)
        assert np.abs(images - 20.0 * labels[:, None, None, None]).max() <= 2
