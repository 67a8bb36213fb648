"""Clients with records of few labels: what each holds, worked out by hand on twelve
records.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.data.clients_folder import check_made_for
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import RawRecords, RecordDataset, load_records
from dpfedbench.errors import BenchError
from tests.partitions import make_fragments


def _dataset(folder: Path, train: list[int], name: str = "toy") -> RecordDataset:
    images = np.arange(len(train), dtype=np.uint8)[:, None, None, None]
    raw = RawRecords(
        train_images=images,
        train_labels=np.array(train),
        test_images=images[:2],
        test_labels=np.array([0, 1]),
        class_names=("a", "b", "c", "d")[: max(train) + 1],
        versions={},
    )
    raw.save(folder, {"name": name})
    return load_records(folder)


@pytest.fixture
def toy(tmp_path: Path) -> RecordDataset:
    """Twelve training records: five of a, three of b, four of c; stored as records 0-4,
    5-7 and 8-11.
    """
    return _dataset(tmp_path / "toy", [2, 0, 1, 0, 2, 0, 1, 0, 2, 1, 2, 0])


class _Backwards:
    """A generator whose permutation is that of the reversed order."""

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)[::-1]


def test_fragments_are_dealt_as_by_hand(
    toy: RecordDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[tuple[Any, ...]] = []

    def stream(*name: Any) -> _Backwards:
        named.append(name)
        return _Backwards()

    monkeypatch.setattr("dpfedbench.parts.partitions.fragments.stream", stream)
    made = make_fragments(toy, clients=3, fragments=6, seed=7)
    # Fragments of two: 01 23 45 67 89 AB; backwards, two to each client.
    assert made.records.tolist() == [[10, 11, 8, 9], [6, 7, 4, 5], [2, 3, 0, 1]]
    assert made.records.dtype == np.int32
    assert named == [(7, "partition/fragments")]
    assert made.summary["label_histogram"] == [[0, 0, 4], [1, 3, 0], [4, 0, 0]]
    assert made.summary["labels_per_client"] == [1, 2, 1]
    assert made.summary["records_per_client"] == made.records.shape[1] == 4
    assert made.summary["fragments"] == 6
    assert made.summary["dataset_sha256"] == toy.summary["sha256"]
    assert (made.summary["dataset"], made.summary["kind"], made.summary["seed"]) == (
        "toy",
        "fragments",
        7,
    )
    assert len(made) == 3


def test_records_are_sorted_by_label_wherever_they_lie(toy: RecordDataset) -> None:
    """A data set whose labels are not in order: one fragment per client holds one label
    each.
    """
    labels = np.array([1, 0, 1, 0])
    shuffled = RecordDataset(
        name="shuffled",
        images=np.zeros((4, 1, 1, 1), np.uint8),
        labels=labels,
        splits={"train": np.arange(4), "test": np.arange(0)},
        class_names=("a", "b"),
        summary={"sha256": "x"},
    )
    made = make_fragments(shuffled, clients=2, fragments=2, seed=0)
    assert sorted(made.records.tolist()) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("clients", "fragments"), [(1, 1), (3, 6), (2, 12), (12, 12), (4, 4)]
)
def test_each_training_record_has_one_client(
    toy: RecordDataset, clients: int, fragments: int
) -> None:
    made = make_fragments(toy, clients=clients, fragments=fragments, seed=1)
    assert made.records.shape == (clients, 12 // clients)
    assert sorted(made.records.ravel().tolist()) == list(range(12))
    # Fragments stay whole: within one, records follow one another.
    whole = made.records.reshape(fragments, -1)
    assert (np.diff(whole, axis=1) == 1).all()


def test_it_depends_on_the_seed_and_on_nothing_else(toy: RecordDataset) -> None:
    first, again, other = (
        make_fragments(toy, clients=3, fragments=6, seed=seed) for seed in (0, 0, 1)
    )
    assert np.array_equal(first.records, again.records)
    assert not np.array_equal(first.records, other.records)


def test_at_the_papers_scale_clients_differ_in_their_labels(tmp_path: Path) -> None:
    """400 fragments, 10 clients; pictures of one pixel. Each label has 40 fragments, of
    which 4 are expected.
    """
    labels = np.repeat(np.arange(10), 6000)
    dataset = RecordDataset(
        name="scale",
        images=np.zeros((60_000, 1, 1, 1), np.uint8),
        labels=labels,
        splits={"train": np.arange(60_000), "test": np.arange(0)},
        class_names=tuple("0123456789"),
        summary={"sha256": "x"},
    )
    made = make_fragments(dataset, clients=10, fragments=400, seed=0)
    histogram = np.array(made.summary["label_histogram"])
    assert made.records.shape == (10, 6000)
    assert (histogram % 150 == 0).all()
    assert (histogram.sum(axis=0) == 6000).all() and (
        histogram.sum(axis=1) == 6000
    ).all()
    # 40 of 400 without putting back: a label's fragments at one client have mean 4 and
    # variance 40 * 0.1 * 0.9 * 360/399 = 3.25; the mean square over the 100 cells lies
    # within a third of it.
    assert 3.25 * 2 / 3 < ((histogram / 150 - 4) ** 2).mean() < 3.25 * 4 / 3


@pytest.mark.parametrize(
    ("clients", "fragments", "message"),
    [
        (0, 6, "clients.count is 0: input should be greater than or equal to 1"),
        (3, 0, "clients.fragments is 0: input should be greater than or equal to 1"),
        (
            7,
            6,
            (
                "clients.count is 7, more than the 6 fragments of clients.fragments:"
                " lower it or raise that"
            ),
        ),
        (
            5,
            10,
            (
                "5 clients cannot have equal shares of toy's 12 training records: set"
                " clients.count to 4, the nearest"
            ),
        ),
        (
            4,
            6,
            (
                "clients.fragments (6) is not a multiple of clients.count (4): try 8"
                " fragments"
            ),
        ),
        (
            3,
            9,
            (
                "12 training records cannot be cut into 9 equal fragments: set"
                " clients.fragments to 6, the nearest"
            ),
        ),
        (
            2,
            400,
            (
                "12 training records cannot be cut into 400 equal fragments: set"
                " clients.fragments to 12, the"
            ),
        ),
    ],
)
def test_what_cannot_be_dealt_is_refused_in_one_line(
    toy: RecordDataset, clients: int, fragments: int, message: str
) -> None:
    with pytest.raises(BenchError) as caught:
        make_fragments(toy, clients=clients, fragments=fragments, seed=0)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def made(toy: RecordDataset) -> RecordPartition:
    return make_fragments(toy, clients=3, fragments=6, seed=0)


def test_a_partition_survives_its_folder(made: RecordPartition, tmp_path: Path) -> None:
    made.save(tmp_path / "clients")
    loaded = RecordPartition.load(tmp_path / "clients")
    assert (
        np.array_equal(loaded.records, made.records)
        and loaded.records.dtype == np.int32
    )
    assert loaded.summary == {
        **made.summary,
        "clients_sha256": loaded.summary["clients_sha256"],
    }
    rows = (tmp_path / "clients" / "preview.csv").read_text().splitlines()
    wanted = [
        f"{client},{label},{'abc'[label]},{count}"
        for client, counts in enumerate(made.summary["label_histogram"])
        for label, count in enumerate(counts)
        if count
    ]
    assert rows == ["client,label,class_name,records", *wanted]
    assert sorted(file.name for file in (tmp_path / "clients").iterdir()) == [
        "clients.npz",
        "preview.csv",
        "summary.json",
    ]


def test_saving_twice_writes_the_same_bytes(
    made: RecordPartition, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        made.save(tmp_path / name)
    for file in ("clients.npz", "preview.csv", "summary.json"):
        assert (tmp_path / "one" / file).read_bytes() == (
            tmp_path / "two" / file
        ).read_bytes()


def test_a_damaged_or_missing_file_is_named(
    made: RecordPartition, tmp_path: Path
) -> None:
    folder = tmp_path / "clients"
    made.save(folder)
    content = (folder / "clients.npz").read_bytes()
    (folder / "clients.npz").write_bytes(content[:-1])
    with pytest.raises(
        BenchError, match=rf"clients\.npz is damaged .*delete {folder} and run"
    ):
        RecordPartition.load(folder)
    (folder / "clients.npz").unlink()
    with pytest.raises(BenchError, match=r"clients\.npz is missing"):
        RecordPartition.load(folder)
    (folder / "clients.npz").write_bytes(content)
    (folder / "summary.json").write_text(json.dumps({"kind": "fragments"}))
    with pytest.raises(BenchError, match=r"is damaged \('clients_sha256'\)"):
        RecordPartition.load(folder)


def test_a_place_that_cannot_be_written_is_named(
    made: RecordPartition, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        BenchError, match=r"cannot write .*a file lies where a folder belongs"
    ):
        made.save(tmp_path / "file" / "clients")


def test_a_partition_made_for_other_images_is_refused(
    toy: RecordDataset, made: RecordPartition, tmp_path: Path
) -> None:
    check_made_for(toy.name, toy.summary, made.summary)
    other = _dataset(tmp_path / "other", [0, 1, 2, 0], name="other")
    with pytest.raises(
        BenchError,
        match=(
            r"made for other images \(of toy\) than these of other: delete the clients"
        ),
    ):
        check_made_for(other.name, other.summary, made.summary)
