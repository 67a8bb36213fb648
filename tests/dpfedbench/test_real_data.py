"""`dpfedbench data`: the files of real data sets, and those that a preset lacks."""

from pathlib import Path

import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from dpfedbench import data
from dpfedbench.command import main, workflow_folder
from dpfedbench.data_command import main as check_data
from dpfedbench.errors import BenchError
from dpfedbench.real_data import find_missing, read_places
from tests.calls import ROOT


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_each_real_data_set_has_a_place() -> None:
    made_here = {
        name
        for name, row in data.read_table().items()
        if row["source"].startswith(
            ("drawn by dpfedbench", "the documentation strings")
        )
    }
    assert set(read_places()) == set(data.read_table()) - made_here
    assert len(made_here) == 7


def test_places_of_cifar_are_the_published_names() -> None:
    for name, published in (("cifar-10", CIFAR10), ("cifar-fs", CIFAR100)):
        (names,) = read_places()[name].parts.values()
        assert names == (published.filename, published.base_folder)


def test_missing_files_are_named_one_a_line_with_their_place(tmp_path: Path) -> None:
    touch(tmp_path / "omniglot" / "images_background.zip")
    touch(tmp_path / "mini-imagenet" / "mini-imagenet-cache-train.pkl")
    touch(tmp_path / "mini-imagenet" / "val" / "n01855672" / "1.jpg")
    own = {"cats": {"folder": "cats"}, "dogs": {"folder": str(tmp_path)}}
    names = ["omniglot", "mini-imagenet", "glyphs", "cats", "dogs"]
    assert list(find_missing(names, tmp_path, own)) == [
        (f"cats: {tmp_path / 'cats'} is missing", False),
        (
            "mini-imagenet: mini-imagenet-cache-test.pkl or test is missing in"
            f" {tmp_path / 'mini-imagenet'} (from https://image-net.org)",
            False,
        ),
        (
            "omniglot: images_evaluation.zip or images_evaluation is missing in"
            f" {tmp_path / 'omniglot'} (from https://github.com/brendenlake/omniglot)",
            True,
        ),
    ]
    touch(tmp_path / "omniglot" / "images_evaluation" / "Angelic")
    touch(tmp_path / "mini-imagenet" / "test" / "n01930112" / "1.jpg")
    (tmp_path / "cats").mkdir()
    assert list(find_missing(names, tmp_path, own)) == []


def test_parts_of_two_folders_are_not_one_copy(tmp_path: Path) -> None:
    """MNIST and Fashion-MNIST have equal names, so that a copy lies in one folder."""
    (images, *others) = read_places()["mnist"].parts
    touch(tmp_path / "mnist" / f"{images}.gz")
    for name in others:
        touch(tmp_path / "MNIST" / "raw" / f"{name}.gz")
    (line, is_downloaded), *rest = find_missing(["mnist"], tmp_path, {})
    assert images in line
    assert is_downloaded
    assert rest == []


def test_without_a_folder_everything_is_missing() -> None:
    ((line, _),) = find_missing(["wiki-1600"], None, {})
    assert "FOLDER/wiki-3029" in line


def test_check_of_a_configuration_ends_with_1_if_a_file_has_to_be_fetched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = workflow_folder() / "config"
    monkeypatch.delenv("DPFEDBENCH_DATA", raising=False)
    assert check_data(["--check", "smoke"], config) == 0
    assert "0 missing files" in capsys.readouterr().out
    own = tmp_path / "own.yaml"
    own.write_text("stand_ins: {shakespeare-800: null}\n", encoding="utf-8")
    assert check_data(["--check", "smoke", "--configfile", str(own)], config) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("shakespeare-800: ") for line in lines) == 1
    with pytest.raises(BenchError, match="no preset 'smok'"):
        check_data(["--check", "smok"], config)


def test_data_page_and_command_have_the_same_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "real-data.md").read_text(encoding="utf-8")
    assert main(["data"]) == 0
    printed = capsys.readouterr().out.splitlines()[1:]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(printed)
    for row, line in zip(rows, printed, strict=True):
        for cell in row.strip("| ").split(" | "):
            assert cell.strip("`") in line
