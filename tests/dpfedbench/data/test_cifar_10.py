"""CIFAR-10: tiny copies in each of its forms, and copies that are none of them."""

import io
import pickle
import tarfile
import zipfile
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data.cifar import CLASSES, read_cifar_10, read_cifar_10_jpeg
from dpfedbench.errors import BenchError

EXAMPLES = {"train": 5, "test": 2}


def parts() -> dict[str, tuple[np.ndarray, list[int]]]:
    """Of each file pictures [10 or 20, 3 x 32 x 32] and labels: red = label, green =
    part, blue = row.
    """
    found = {}
    for number in range(6):
        name, each = (
            (f"data_batch_{number + 1}", 1) if number < 5 else ("test_batch", 2)
        )
        labels = [label for label in reversed(range(10)) for _ in range(each)]
        images = np.zeros((len(labels), 3, 32, 32), np.uint8)
        images[:, 0] = np.array(labels)[:, None, None]
        images[:, 1] = number
        images[:, 2] = np.arange(32)[:, None]
        found[name] = images.reshape(len(labels), -1), labels
    return found


def files(form: str, content: dict) -> dict[str, bytes]:
    if form == "python":
        return {
            name: pickle.dumps({"data": x, "labels": y}, protocol=2)
            for name, (x, y) in content.items()
        }
    return {
        f"{name}.bin": np.concatenate([np.array(y, np.uint8)[:, None], x], 1).tobytes()
        for name, (x, y) in content.items()
    }


def archive(folder: Path, form: str, content: dict, *, unpacked: bool = False) -> Path:
    inner = "cifar-10-batches-py" if form == "python" else "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"cifar-10-{form}.tar.gz", "w:gz") as packed:
        for name, data in files(form, content).items():
            member = tarfile.TarInfo(f"{inner}/{name}")
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    if unpacked:
        with tarfile.open(folder / f"cifar-10-{form}.tar.gz") as packed:
            packed.extractall(folder, filter="data")
        (folder / f"cifar-10-{form}.tar.gz").unlink()
    return folder


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("place", [".", "cifar-10"])
def test_both_forms_of_the_release_are_read(tmp_path, form, unpacked, place):
    archive(tmp_path / place, form, parts(), unpacked=unpacked)
    raw = read_cifar_10(
        tmp_path, tmp_path / "download", examples=EXAMPLES, check_md5=False
    )
    assert raw.class_names == CLASSES and raw.train_images.shape == (50, 32, 32, 3)
    assert (raw.train_images[..., 0] == raw.train_labels[:, None, None]).all()
    assert (raw.train_images[:, 0, 0, 1] == np.repeat(np.arange(5), 10)).all()
    assert (raw.test_images[..., 2] == np.arange(32)[:, None]).all()
    assert (raw.test_labels == np.repeat(np.arange(9, -1, -1), 2)).all()


def cut(content):
    content["data_batch_3"] = (
        content["data_batch_3"][0][:, :9],
        content["data_batch_3"][1],
    )


def twice(content):
    content["data_batch_2"] = content["data_batch_2"][0], [3] * 10


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda content: content.pop("test_batch"), "it has no test_batch"),
        (cut, "data_batch_3: it has not the form of CIFAR-10"),
        (twice, "not every class has 5 images: train/airplane has 4"),
        (
            lambda content: content.update(
                test_batch=(content["test_batch"][0], [10] * 20)
            ),
            "label 10",
        ),
    ],
)
def test_a_copy_that_is_not_cifar_10_is_refused(tmp_path, form, change, what):
    content = parts()
    change(content)
    archive(tmp_path, form, content)
    with pytest.raises(BenchError, match=what) as caught:
        read_cifar_10(tmp_path, tmp_path, examples=EXAMPLES, check_md5=False)
    assert "delete it" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["python", "binary"])
def test_an_archive_must_be_the_published_one_and_whole(tmp_path, form):
    path = archive(tmp_path, form, parts()) / f"cifar-10-{form}.tar.gz"
    with pytest.raises(BenchError, match="not the published archive"):
        read_cifar_10(tmp_path, tmp_path, examples=EXAMPLES)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BenchError, match="damaged"):
        read_cifar_10(tmp_path, tmp_path, examples=EXAMPLES, check_md5=False)


def test_a_folder_in_neither_form_is_refused_before_anything_is_fetched(tmp_path):
    (tmp_path / "cifar-10").mkdir()
    (tmp_path / "cifar-10" / "cifar-10-images.zip").write_bytes(b"")
    with pytest.raises(
        BenchError,
        match=r"looked in .*cifar-10-python\.tar\.gz.*is the data set cifar-10-jpeg",
    ) as caught:
        read_cifar_10(tmp_path, tmp_path / "download")
    assert "\n" not in str(caught.value)


def test_no_copy_and_no_network(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(
        BenchError, match=r"cannot download cifar-10-python\.tar\.gz .*put it in"
    ):
        read_cifar_10(None, tmp_path / "download")


def pictures(folder: Path) -> Path:
    """`train/CLASS/N.jpg`, `test/CLASS/N.jpg`: grey of value 20 x label."""
    for split, each in EXAMPLES.items():
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(each):
                Image.new("RGB", (32, 32), (20 * label,) * 3).save(
                    folder / split / name / f"{number:04}.jpg"
                )
    return folder


@pytest.mark.parametrize("form", ["zip", "folder", "bare"])
def test_jpeg_pictures_are_read(tmp_path, form):
    local = tmp_path / "local" / "cifar-10"
    if form == "zip":
        source = pictures(tmp_path / "drawn")
        local.mkdir(parents=True)
        with zipfile.ZipFile(local / "cifar-10-images.zip", "w") as packed:
            for file in sorted(source.rglob("*.jpg")):
                packed.write(file, file.relative_to(source))
    else:
        pictures(local / "cifar-10-images" if form == "folder" else local)
    raw = read_cifar_10_jpeg(tmp_path / "local", tmp_path, examples=EXAMPLES)
    assert raw.train_images.shape == (50, 32, 32, 3) and raw.test_images.shape == (
        20,
        32,
        32,
        3,
    )
    assert (
        np.abs(raw.train_images - 20.0 * raw.train_labels[:, None, None, None]).max()
        <= 2
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda file: file.unlink(), "not every class has 5 images: train/cat has 4"),
        (
            lambda file: file.write_bytes(b"no picture"),
            r"train/cat/0001\.jpg is damaged .*cannot identify image file",
        ),
        (lambda file: Image.new("RGB", (31, 32)).save(file), "is 31×32, not 32×32"),
    ],
)
def test_damaged_pictures_are_refused(tmp_path, change, what):
    folder = pictures(tmp_path / "cifar-10" / "cifar-10-images")
    change(folder / "train" / "cat" / "0001.jpg")
    with pytest.raises(BenchError, match=what) as caught:
        read_cifar_10_jpeg(tmp_path, tmp_path, examples=EXAMPLES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("local", [None, "empty"])
def test_pictures_that_are_not_there_are_said_to_be_looked_for(tmp_path, local):
    with pytest.raises(
        BenchError,
        match=(
            r"looked for cifar-10-images\.zip or the folder.*take the data set cifar-10"
        ),
    ):
        read_cifar_10_jpeg(local and tmp_path, tmp_path)
