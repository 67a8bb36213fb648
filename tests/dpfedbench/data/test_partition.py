"""Few-shot clients and tasks: images, sharing, and dependence on the seed alone."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.partition import (
    Partition,
    distinct,
    draw_quarter_turns,
    gather,
    sample_tasks,
)
from tests.partitions import make_partition

from .conftest import make_raw_images, refusal


def all_distinct(rows):
    ordered = np.sort(rows, axis=-1)
    return (ordered[..., 1:] != ordered[..., :-1]).all()


def check_clients(partition, classes):
    """Check that clients or tasks hold distinct images of distinct classes of these."""
    assert np.isin(partition.classes, classes).all()
    assert all_distinct(partition.classes)
    assert all_distinct(partition.examples)


def image_numbers(partition):
    """Return the number of each image that a client has: [clients, images per client]."""
    numbers = partition.classes[:, :, None].astype(int) * 1000 + partition.examples
    return numbers.reshape(len(partition), -1)


def make_clients(dataset, **change):
    options = {"clients": 20, "ways": 5, "examples_per_class": 6}
    return make_partition(dataset, **options | {"kind": "shared", "seed": 0} | change)


def draw_tasks(dataset, split="test", **change):
    options = {"count": 40, "ways": 5, "shots": 1, "query_per_class": 2, "seed": 0}
    return sample_tasks(dataset, split, **options | {"purpose": "meta-test"} | change)


@pytest.mark.parametrize(
    ("clients", "ways", "examples"), [(300, 5, 6), (50, 24, 2), (40, 1, 12)]
)
def test_shared_clients_hold_distinct_training_images(small, clients, ways, examples):
    partition = make_clients(
        small, clients=clients, ways=ways, examples_per_class=examples, seed=3
    )
    assert partition.examples.shape == (clients, ways, examples)
    check_clients(partition, small.splits["train"])
    assert set(partition.examples.ravel()) == set(range(small.examples_per_class))


@pytest.mark.parametrize(
    ("ways", "examples"), [(5, 6), (5, 5), (24, 3), (1, 12), (13, 2)]
)
def test_disjoint_clients_share_no_image_and_are_as_many_as_possible(
    small, ways, examples
):
    """Each class can serve 12 // examples clients, and each client needs all ways."""
    most = 24 * (12 // examples) // ways
    options = {"ways": ways, "examples_per_class": examples, "kind": "disjoint"}
    partition = make_clients(small, clients=most, seed=1, **options)
    images = image_numbers(partition)
    assert len(np.unique(images)) == images.size
    check_clients(partition, small.splits["train"])
    assert partition.summary["clients_per_image"]["max"] == 1
    message = refusal(make_clients, small, clients=most + 1, seed=1, **options)
    assert f"has images for {most} clients" in message


@pytest.mark.parametrize("kind", ["shared", "disjoint"])
def test_client_depends_on_the_seed_and_on_nothing_else(small, kind):
    def images(clients, seed):
        options = {"examples_per_class": 3, "kind": kind}
        return image_numbers(make_clients(small, clients=clients, seed=seed, **options))

    state = np.random.get_state()[1].copy()
    whole = images(19, 0)
    assert np.array_equal(whole, images(19, 0))
    assert np.array_equal(whole[:4], images(4, 0))
    assert not np.array_equal(whole, images(19, 1))
    assert np.array_equal(np.random.get_state()[1], state)


def test_clients_beyond_one_block_are_drawn_anew(small):
    images = image_numbers(make_clients(small, clients=9000))
    fewer = image_numbers(make_clients(small, clients=4100))
    assert np.array_equal(images[:4100], fewer)
    assert not np.array_equal(images[:4096], images[4096:8192])


@pytest.mark.parametrize(("size", "take"), [(5, 2), (4, 2), (4, 3), (7, 3)])
def test_distinct_choices_are_equally_likely(size, take):
    """Chi-squared over all ordered choices, false-alarm rate 1e-6 per case."""
    rows = distinct(np.random.default_rng(7), 60_000, size, take)
    permutations = itertools.permutations(range(size), take)
    choices = {choice: index for index, choice in enumerate(permutations)}
    numbers = [choices[tuple(map(int, row))] for row in rows]
    counts = np.bincount(numbers, minlength=len(choices))
    assert stats.chisquare(counts).pvalue > 1e-6


def test_partition_is_read_back_and_always_has_the_same_bytes(small, tmp_path):
    partition = make_clients(small)
    for name in ("first", "second"):
        partition.save(tmp_path / name)
    loaded = Partition.load(tmp_path / "first")
    assert np.array_equal(loaded.classes, partition.classes)
    assert np.array_equal(loaded.examples, partition.examples)
    assert loaded.quarter_turns is None
    assert partition.summary.items() <= loaded.summary.items()
    for file in ("clients.npz", "summary.json"):
        content = (tmp_path / "first" / file).read_bytes()
        assert content == (tmp_path / "second" / file).read_bytes()


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.with_name("summary.json").write_text("{}"),
    ],
)
def test_partition_that_is_damaged_is_refused(small, tmp_path, harm):
    make_clients(small, clients=3).save(tmp_path / "clients")
    harm(tmp_path / "clients" / "clients.npz")
    assert "clients.npz is" in refusal(Partition.load, tmp_path / "clients")


def test_gather_returns_the_images_of_each_client_with_their_labels(small):
    partition = make_clients(small)
    ids = np.array([7, 3, 19])
    batch = gather(small, partition, ids, support_per_class=2, query_per_class=3)
    assert batch.support_x.shape == (3, 10, 4, 4, 1)
    assert batch.query_x.shape == (3, 15, 4, 4, 1)
    assert batch.support_y.tolist() == [np.repeat(range(5), 2).tolist()] * 3
    assert batch.query_y.tolist() == [np.repeat(range(5), 3).tolist()] * 3
    # Pixels of the data set are (class * 7 + example) % 256.
    classes = partition.classes[ids][:, :, None].astype(int)
    pixels = (classes * 7 + partition.examples[ids][:, :, :5]) % 256 / 255
    for x, expected in (
        (batch.support_x, pixels[:, :, :2]),
        (batch.query_x, pixels[:, :, 2:]),
    ):
        expected = np.broadcast_to(expected.reshape(3, -1, 1, 1, 1), x.shape)
        np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_gather_refuses_more_than_a_client_holds_and_other_images(small, tmp_path):
    partition = make_clients(small)
    clients = np.arange(2)
    sizes = {"support_per_class": 4, "query_per_class": 3}
    assert "more than the 6" in refusal(gather, small, partition, clients, **sizes)
    make_raw_images(30, 6, 10, 12).save(tmp_path / "large", {"name": "large"})
    large = load_dataset(tmp_path / "large")
    sizes = {"support_per_class": 1, "query_per_class": 1}
    message = refusal(gather, large, partition, clients, **sizes)
    assert "made for other images (of small), not for these of large" in message


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_tasks_come_from_their_split_with_disjoint_support_and_query(small, split):
    tasks = draw_tasks(small, split, shots=5, query_per_class=7)
    assert len(tasks) == 40
    check_clients(tasks, small.splits[split])


def test_tasks_depend_on_purpose_and_seed_and_not_on_their_number(small):
    images = image_numbers(draw_tasks(small))
    assert np.array_equal(images, image_numbers(draw_tasks(small)))
    assert np.array_equal(images[:9], image_numbers(draw_tasks(small, count=9)))
    for change in ({"seed": 1}, {"purpose": "validation"}):
        assert not np.array_equal(images, image_numbers(draw_tasks(small, **change)))


CORNERS = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
"""An image of 2 x 2 pixels after 0 to 3 quarter turns counterclockwise, by hand."""


def turned_clients(folder, quarter_turns):
    """Return two clients of two classes of the image of `CORNERS`, plus 10 per class."""
    image = np.array(CORNERS[0])[:, :, None]
    images = np.stack([np.stack([image, image + 100]) + 10 * row for row in range(4)])
    raw = RawImages(
        images=images.astype(np.uint8),
        class_names=("a", "b", "c", "d"),
        splits=("train", "train", "validation", "test"),
        versions={},
    )
    raw.save(folder, {"name": "corners"})
    dataset = load_dataset(folder)
    clients = Partition(
        classes=np.array([[0, 1], [1, 0]]),
        examples=np.array([[[0, 1], [1, 0]], [[0, 1], [0, 1]]]),
        quarter_turns=np.array(quarter_turns),
        summary={"dataset": "corners", "dataset_sha256": dataset.summary["sha256"]},
    )
    return dataset, clients


def test_gather_turns_each_class_of_each_client_by_its_own_angle(tmp_path):
    """A saved partition turns them too. The data set does not change."""
    turns = [[0, 1], [2, 3]]
    dataset, saved = turned_clients(tmp_path / "data", turns)
    saved.save(tmp_path / "clients")
    clients = Partition.load(tmp_path / "clients")
    ids = np.array([1, 0])
    batch = gather(dataset, clients, ids, support_per_class=1, query_per_class=1)
    for row, client in enumerate(ids):
        for label in (0, 1):
            base = 10 * clients.classes[client, label]
            expected = np.array(CORNERS[turns[client][label]]) + base
            first, second = 100 * clients.examples[client, label]
            support = batch.support_x[row, label, :, :, 0] * 255
            query = batch.query_x[row, label, :, :, 0] * 255
            np.testing.assert_allclose(support, expected + first, rtol=1e-6)
            np.testing.assert_allclose(query, expected + second, rtol=1e-6)
    assert dataset.images[0, 0, :, :, 0].tolist() == CORNERS[0]


def test_quarter_turns_are_equally_likely_and_independent():
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
