"""Clients and tasks: what each holds, who shares what, and that it depends on the seed
alone.
"""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpfedbench.data.images import ImageDataset, RawImages, load_dataset
from dpfedbench.data.partition import (
    Partition,
    distinct,
    draw_quarter_turns,
    gather,
    sample_tasks,
)
from dpfedbench.errors import BenchError
from tests.partitions import make_partition

SHAPES = [(300, 5, 6), (50, 24, 2), (40, 1, 12), (7, 3, 1), (1, 5, 5)]


def _alldistinct(rows: np.ndarray) -> bool:
    ordered = np.sort(rows, axis=-1)
    return bool((ordered[..., 1:] != ordered[..., :-1]).all())


def _images(partition: Partition) -> np.ndarray:
    """Number of each image held: [clients, images per client]."""
    numbers = partition.classes[:, :, None].astype(int) * 1000 + partition.examples
    return numbers.reshape(len(partition), -1)


@pytest.mark.parametrize(("clients", "ways", "examples"), SHAPES)
def test_shared_clients_hold_distinct_training_images(
    small: ImageDataset, clients: int, ways: int, examples: int
) -> None:
    made = make_partition(
        small,
        clients=clients,
        ways=ways,
        examples_per_class=examples,
        kind="shared",
        seed=3,
    )
    assert made.classes.shape == (clients, ways)
    assert made.examples.shape == (clients, ways, examples)
    assert np.isin(made.classes, small.splits["train"]).all()
    assert _alldistinct(made.classes)
    assert _alldistinct(made.examples)
    assert made.examples.min() >= 0 and made.examples.max() < small.examples_per_class


@pytest.mark.parametrize(
    ("ways", "examples"), [(5, 6), (5, 5), (7, 4), (24, 3), (23, 1), (1, 12), (13, 2)]
)
def test_disjoint_clients_share_no_image_and_as_many_fit_as_can(
    small: ImageDataset, ways: int, examples: int
) -> None:
    # Each class can serve 12 // examples clients, and each client needs `ways` classes.
    most = 24 * (12 // examples) // ways
    made = make_partition(
        small,
        clients=most,
        ways=ways,
        examples_per_class=examples,
        kind="disjoint",
        seed=1,
    )
    images = _images(made)
    assert len(np.unique(images)) == images.size
    assert _alldistinct(made.classes)
    assert np.isin(made.classes, small.splits["train"]).all()
    assert made.summary["clients_per_image"]["max"] == 1
    with pytest.raises(
        BenchError,
        match=rf"cannot be disjoint: .* enough for {most}; .*partition: shared",
    ):
        make_partition(
            small,
            clients=most + 1,
            ways=ways,
            examples_per_class=examples,
            kind="disjoint",
            seed=1,
        )


@pytest.mark.parametrize("kind", ["shared", "disjoint"])
def test_a_client_depends_on_the_seed_and_on_nothing_else(
    small: ImageDataset, kind: str
) -> None:
    def make(clients: int, seed: int) -> Partition:
        return make_partition(
            small, clients=clients, ways=5, examples_per_class=3, kind=kind, seed=seed
        )

    state = np.random.get_state()[1].copy()  # type: ignore[index]
    whole, again, fewer, other = make(19, 0), make(19, 0), make(4, 0), make(19, 1)
    assert np.array_equal(_images(whole), _images(again))
    assert np.array_equal(_images(whole)[:4], _images(fewer))
    assert not np.array_equal(_images(whole), _images(other))
    assert np.array_equal(np.random.get_state()[1], state)  # type: ignore[index]


def test_clients_beyond_one_block_go_on_drawing_afresh(small: ImageDataset) -> None:
    made = make_partition(
        small, clients=9000, ways=5, examples_per_class=3, kind="shared", seed=0
    )
    shorter = make_partition(
        small, clients=4100, ways=5, examples_per_class=3, kind="shared", seed=0
    )
    assert np.array_equal(_images(made)[:4100], _images(shorter))
    assert not np.array_equal(_images(made)[:4096], _images(made)[4096:8192])


@pytest.mark.parametrize(("size", "take"), [(5, 2), (4, 2), (4, 3), (7, 3)])
def test_ordered_choices_are_equally_likely(size: int, take: int) -> None:
    """Chi-squared over all ordered choices; false-alarm rate 1e-6 per case (and the
    seed is fixed).
    """
    rows = 60_000
    drawn = distinct(np.random.default_rng(7), rows, size, take)
    choices = {
        choice: index
        for index, choice in enumerate(itertools.permutations(range(size), take))
    }
    counts = np.bincount(
        [choices[tuple(map(int, row))] for row in drawn], minlength=len(choices)
    )
    assert stats.chisquare(counts).pvalue > 1e-6


def test_the_summary_counts_how_images_are_shared(small: ImageDataset) -> None:
    made = make_partition(
        small, clients=100, ways=5, examples_per_class=6, kind="shared", seed=0
    )
    used = np.unique(_images(made), return_counts=True)[1]
    sharing = made.summary["clients_per_image"]
    assert sharing["mean"] == pytest.approx(100 * 5 * 6 / (24 * 12))
    assert sharing["max"] == used.max()
    assert made.summary["images_used"] == len(used)
    assert made.summary["images_available"] == 24 * 12
    assert made.summary["split_classes"] == {"train": 24, "validation": 6, "test": 10}


def test_four_hundred_thousand_clients_take_seconds(
    tmp_path: Path, raw_images: Any
) -> None:
    """The published scale. 0.7 s of one core when measured; the bound leaves room for a
    busy machine.
    """
    raw_images(1150, 1, 1, 20, size=1).save(tmp_path / "large", {"name": "large"})
    dataset = load_dataset(tmp_path / "large")
    start = time.process_time()
    made = make_partition(
        dataset, clients=400_000, ways=5, examples_per_class=6, kind="shared", seed=0
    )
    assert time.process_time() - start < 10
    assert len(made) == 400_000
    assert made.examples.nbytes == 400_000 * 30 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": 25}, "25 ways are more than the 24 train classes of small"),
        (
            {"examples_per_class": 13},
            "13 images per class .* more than the 12 that a class of small holds",
        ),
        ({"clients": 0}, "clients.count is 0: it must be at least 1"),
        ({"ways": 0}, "task.ways is 0"),
        ({"examples_per_class": -1}, "clients.examples_per_class is -1"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(
    small: ImageDataset, change: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {
        "clients": 10,
        "ways": 5,
        "examples_per_class": 6,
        "kind": "shared",
        "seed": 0,
    }
    with pytest.raises(BenchError, match=message) as caught:
        make_partition(small, **(arguments | change))
    assert "\n" not in str(caught.value)


def test_a_partition_survives_its_folder(small: ImageDataset, tmp_path: Path) -> None:
    made = make_partition(
        small, clients=30, ways=5, examples_per_class=6, kind="shared", seed=0
    )
    made.save(tmp_path / "clients")
    loaded = Partition.load(tmp_path / "clients")
    assert np.array_equal(loaded.classes, made.classes)
    assert np.array_equal(loaded.examples, made.examples)
    assert loaded.summary["clients_per_image"] == made.summary["clients_per_image"]
    first = (
        (tmp_path / "clients" / "preview.csv").read_text().splitlines()[1].split(",")
    )
    assert first[3] == small.class_names[made.classes[0, 0]]
    assert first[4] == " ".join(map(str, made.examples[0, 0]))


def test_saving_twice_writes_the_same_bytes(
    small: ImageDataset, tmp_path: Path
) -> None:
    made = make_partition(
        small, clients=30, ways=5, examples_per_class=6, kind="shared", seed=0
    )
    for name in ("one", "two"):
        made.save(tmp_path / name)
    for file in ("clients.npz", "summary.json", "preview.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (
            tmp_path / "two" / file
        ).read_bytes()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), r"clients\.npz is missing"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-30]),
            r"clients\.npz is damaged",
        ),
        (lambda path: path.write_bytes(b""), r"clients\.npz is damaged"),
    ],
)
def test_a_damaged_partition_is_refused(
    small: ImageDataset, tmp_path: Path, harm: Any, message: str
) -> None:
    make_partition(
        small, clients=3, ways=5, examples_per_class=6, kind="shared", seed=0
    ).save(tmp_path / "c")
    harm(tmp_path / "c" / "clients.npz")
    with pytest.raises(
        BenchError, match=message + r".*delete .* and run the workflow again"
    ):
        Partition.load(tmp_path / "c")


def test_gather_fetches_the_right_images_with_the_right_labels(
    small: ImageDataset,
) -> None:
    made = make_partition(
        small, clients=20, ways=5, examples_per_class=6, kind="shared", seed=0
    )
    ids = np.array([7, 3, 19])
    batch = gather(small, made, ids, support_per_class=2, query_per_class=3)
    assert batch.support_x.shape == (3, 10, 4, 4, 1) and batch.query_x.shape == (
        3,
        15,
        4,
        4,
        1,
    )
    assert batch.support_x.dtype == batch.query_x.dtype == np.float32
    assert batch.support_y.dtype == batch.query_y.dtype == np.int64
    assert batch.support_y.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]] * 3
    for row, client in enumerate(ids):
        for label in range(5):
            index = int(made.classes[client, label])
            for place in range(2):
                # The fixture's pixels say which class and example they are.
                expected = (
                    (index * 7 + int(made.examples[client, label, place])) % 256 / 255
                )
                assert batch.support_x[row, label * 2 + place] == pytest.approx(
                    expected
                )
            for place in range(3):
                expected = (
                    (index * 7 + int(made.examples[client, label, 2 + place]))
                    % 256
                    / 255
                )
                assert batch.query_x[row, label * 3 + place] == pytest.approx(expected)


def test_gather_refuses_more_than_a_client_holds_and_other_images(
    small: ImageDataset, tmp_path: Path, raw_images: Any
) -> None:
    made = make_partition(
        small, clients=20, ways=5, examples_per_class=6, kind="shared", seed=0
    )
    with pytest.raises(
        BenchError, match="4 support and 3 query images per class are more than the 6"
    ):
        gather(small, made, np.arange(2), support_per_class=4, query_per_class=3)
    raw_images(30, 6, 10, 12).save(tmp_path / "other", {"name": "other"})
    with pytest.raises(
        BenchError, match=r"made for other images \(of small\) than these of other"
    ):
        gather(
            load_dataset(tmp_path / "other"),
            made,
            np.arange(2),
            support_per_class=1,
            query_per_class=1,
        )
    for ids in ([20], [-1]):
        with pytest.raises(IndexError):
            gather(small, made, np.array(ids), support_per_class=1, query_per_class=1)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_tasks_come_from_their_split_with_support_and_query_apart(
    small: ImageDataset, split: str
) -> None:
    tasks = sample_tasks(
        small,
        split,
        count=40,
        ways=5,
        shots=5,
        query_per_class=7,
        seed=0,
        purpose="meta-test",
    )
    assert len(tasks) == 40
    assert np.isin(tasks.classes, small.splits[split]).all()
    assert _alldistinct(tasks.classes)
    assert not (tasks.examples[:, :, :5, None] == tasks.examples[:, :, None, 5:]).any()
    batch = gather(small, tasks, np.arange(40), support_per_class=5, query_per_class=7)
    assert batch.support_x.shape[1] == 25 and batch.query_x.shape[1] == 35


def test_tasks_differ_by_purpose_split_and_seed_and_their_number_changes_none(
    small: ImageDataset,
) -> None:
    def draw(
        split: str = "train", count: int = 40, seed: int = 0, purpose: str = "meta-test"
    ) -> np.ndarray:
        return _images(
            sample_tasks(
                small,
                split,
                count=count,
                ways=5,
                shots=1,
                query_per_class=2,
                seed=seed,
                purpose=purpose,
            )
        )

    reference = draw()
    assert np.array_equal(reference, draw())
    assert np.array_equal(reference[:9], draw(count=9))
    for other in (draw(seed=1), draw(purpose="validation")):
        assert not np.array_equal(reference, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": 11}, "11 ways are more than the 10 test classes of small"),
        ({"shots": 6, "query_per_class": 7}, "13 images per class .* more than the 12"),
        ({"split": "exam"}, "no split 'exam': choose one of train, validation, test"),
        ({"count": 0}, "tasks is 0"),
    ],
)
def test_tasks_that_cannot_be_had_are_refused(
    small: ImageDataset, change: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {
        "split": "test",
        "count": 4,
        "ways": 5,
        "shots": 1,
        "query_per_class": 5,
        "seed": 0,
        "purpose": "x",
    }
    arguments |= change
    with pytest.raises(BenchError, match=message):
        sample_tasks(small, arguments.pop("split"), **arguments)


CORNERS = {
    0: [[1, 2], [3, 4]],
    1: [[2, 4], [1, 3]],
    2: [[4, 3], [2, 1]],
    3: [[3, 1], [4, 2]],
}
"""An image of 2 x 2 pixels after quarter turns counterclockwise, by hand."""


def _turned_clients(tmp_path: Path, quarter_turns: Any) -> tuple[Any, Partition]:
    """Two clients of two classes of the image of `CORNERS`, plus 10 for each class."""
    image = np.array(CORNERS[0])[:, :, None]
    images = np.stack([np.stack([image, image + 100]) + 10 * row for row in range(4)])
    RawImages(
        images=images.astype(np.uint8),
        class_names=("a", "b", "c", "d"),
        splits=("train", "train", "validation", "test"),
        versions={},
    ).save(tmp_path / "data", {"name": "corners"})
    dataset = load_dataset(tmp_path / "data")
    clients = Partition(
        classes=np.array([[0, 1], [1, 0]]),
        examples=np.array([[[0, 1], [1, 0]], [[0, 1], [0, 1]]]),
        quarter_turns=None if quarter_turns is None else np.array(quarter_turns),
        summary={"dataset": "corners", "dataset_sha256": dataset.summary["sha256"]},
    )
    return dataset, clients


def test_gather_turns_each_class_of_each_client_by_its_own_angle(
    tmp_path: Path,
) -> None:
    turns = [[0, 1], [2, 3]]
    dataset, clients = _turned_clients(tmp_path, turns)
    batch = gather(
        dataset, clients, np.array([1, 0]), support_per_class=1, query_per_class=1
    )
    for row, client in enumerate((1, 0)):
        for label in (0, 1):
            first = clients.examples[client, label]
            base = 10 * clients.classes[client, label]
            expected = np.array(CORNERS[turns[client][label]]) + base
            for x, example in ((batch.support_x, first[0]), (batch.query_x, first[1])):
                pixels = x[row, label, :, :, 0] * 255
                np.testing.assert_allclose(pixels, expected + 100 * example, rtol=1e-6)
    assert dataset.images[0, 0, :, :, 0].tolist() == CORNERS[0]  # the data stay


def test_clients_without_turns_are_stored_and_read_as_before(tmp_path: Path) -> None:
    _, clients = _turned_clients(tmp_path, None)
    clients.save(tmp_path / "clients")
    with np.load(tmp_path / "clients" / "clients.npz") as stored:
        assert sorted(stored) == ["classes", "examples"]
    assert Partition.load(tmp_path / "clients").quarter_turns is None


def test_turns_are_stored_with_the_clients(tmp_path: Path) -> None:
    _, clients = _turned_clients(tmp_path, [[0, 1], [2, 3]])
    clients.save(tmp_path / "clients")
    loaded = Partition.load(tmp_path / "clients")
    assert loaded.quarter_turns is not None
    assert loaded.quarter_turns.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("turns", [[[0, 1]], [[0, 1], [2, 4]], [[0, 1], [2, -1]]])
def test_turns_that_do_not_fit_are_refused(tmp_path: Path, turns: Any) -> None:
    with pytest.raises(ValueError, match="quarter_turns must be 0 to 3"):
        _turned_clients(tmp_path, turns)


def test_quarter_turns_are_equally_likely_and_independent() -> None:
    """Chi-squared over pairs of turns of one client, of two clients, and of two blocks;
    false-alarm rate 1e-6 each, at a fixed seed.
    """
    turns = draw_quarter_turns(8192, 2, 0)
    for first, second in (
        (turns[:, 0], turns[:, 1]),
        (turns[:-1, 0], turns[1:, 0]),
        (turns[:4096, 0], turns[4096:, 0]),
    ):
        counts = np.bincount(4 * first + second, minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert np.array_equal(draw_quarter_turns(5000, 2, 0), turns[:5000])
    assert not np.array_equal(draw_quarter_turns(8192, 2, 1), turns)
