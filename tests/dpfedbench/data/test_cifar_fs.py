"""CIFAR-FS: its split, and tiny archives in CIFAR-100's form."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from dpfedbench.data.cifar import SPLIT_CLASSES, read_cifar_fs
from dpfedbench.errors import BenchError

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


def test_the_split_is_of_64_16_and_20_of_the_hundred_classes() -> None:
    assert {split: len(names) for split, names in SPLIT_CLASSES.items()} == {
        "train": 64,
        "validation": 16,
        "test": 20,
    }
    assert len(NAMES) == 100
    assert sorted(name for names in SPLIT_CLASSES.values() for name in names) == sorted(
        NAMES
    )


def _parts() -> dict[str, Any]:
    """Two training and one test image a class: red, green, blue = label, 100 + example,
    row.
    """
    parts: dict[str, Any] = {"meta": {"fine_label_names": NAMES}}
    for part, examples in (("train", (0, 1)), ("test", (2,))):
        pixels, labels = [], []
        for example in examples:
            for label in reversed(range(100)):
                image = np.zeros((3, 32, 32), dtype=np.uint8)
                image[0], image[1], image[2] = (
                    label,
                    100 + example,
                    np.arange(32)[:, None],
                )
                pixels.append(image.ravel())
                labels.append(label)
        parts[part] = {"data": np.stack(pixels), "fine_labels": labels}
    return parts


def _archive(folder: Path, parts: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name, content in parts.items():
            data = pickle.dumps(content, protocol=2)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return folder


def test_images_go_to_their_class_in_order(tmp_path: Path) -> None:
    raw = read_cifar_fs(
        _archive(tmp_path, _parts()), tmp_path / "download", examples=3, check_md5=False
    )
    assert raw.images.shape == (100, 3, 32, 32, 3)
    assert raw.class_names == tuple(NAMES)
    assert (raw.images[..., 0] == np.arange(100)[:, None, None, None]).all()
    assert (raw.images[..., 1] == 100 + np.arange(3)[:, None, None]).all()
    assert (raw.images[..., 2] == np.arange(32)[:, None]).all()
    assert [raw.splits.count(split) for split in ("train", "validation", "test")] == [
        64,
        16,
        20,
    ]
    assert raw.splits[NAMES.index("worm")] == "test"


def test_an_extracted_folder_is_as_good(tmp_path: Path) -> None:
    _archive(tmp_path / "a", _parts())
    (tmp_path / "b" / "cifar-100").mkdir(parents=True)
    with tarfile.open(tmp_path / "a" / "cifar-100-python.tar.gz") as archive:
        archive.extractall(tmp_path / "b" / "cifar-100", filter="data")
    one, two = (
        read_cifar_fs(tmp_path / name, tmp_path, examples=3, check_md5=False)
        for name in "ab"
    )
    assert np.array_equal(one.images, two.images)


def _without(parts: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if key != name}


def _with_test(parts: dict[str, Any], pixels: np.ndarray) -> dict[str, Any]:
    return parts | {"test": {"data": pixels, "fine_labels": [0] * 100}}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda parts: _without(parts, "test"), "it has no test"),
        (
            lambda parts: parts | {"meta": {"fine_label_names": ["cat", *NAMES[1:]]}},
            "classes are not",
        ),
        (lambda parts: parts | {"meta": {}}, "fine_label_names"),
        (lambda parts: _with_test(parts, parts["test"]["data"]), "3 images"),
        (
            lambda parts: _with_test(parts, parts["test"]["data"][:, :9]),
            "test: it has not the form of CIFAR-100",
        ),
    ],
)
def test_a_copy_that_is_not_cifar_100_is_refused(
    tmp_path: Path, change: Any, what: str
) -> None:
    folder = _archive(tmp_path, change(_parts()))
    with pytest.raises(BenchError, match=what) as caught:
        read_cifar_fs(folder, tmp_path / "download", examples=3, check_md5=False)
    assert "delete it" in str(caught.value) and "\n" not in str(caught.value)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path, _parts()) / "cifar-100-python.tar.gz"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(BenchError, match=r"cifar-100-python\.tar\.gz.*delete it"):
        read_cifar_fs(tmp_path, tmp_path / "download", examples=3, check_md5=False)


def test_no_copy_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(
        BenchError, match=r"cannot download cifar-100-python\.tar\.gz .*put it in"
    ):
        read_cifar_fs(None, tmp_path / "download")


def test_an_archive_with_another_checksum_is_refused_and_a_folder_is_judged_by_its_content(
    tmp_path: Path,
) -> None:
    path = _archive(tmp_path, _parts()) / "cifar-100-python.tar.gz"
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(
        BenchError, match=rf"not the published archive \(md5 {digest}, not "
    ) as caught:
        read_cifar_fs(tmp_path, tmp_path / "download", examples=3)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    path.unlink()
    assert read_cifar_fs(tmp_path, tmp_path / "download", examples=3).images.shape == (
        100,
        3,
        32,
        32,
        3,
    )
