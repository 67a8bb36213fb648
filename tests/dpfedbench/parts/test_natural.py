"""Natural clients: each client is an owner, and N follows from the data."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.data.owners import Owners
from dpfedbench.errors import BenchError
from dpfedbench.experiments.datasets import with_natural_count
from tests.partitions import made_clients

OWNERS = Owners(
    names=("ann", "bob", "cy", "di"),
    of_example=np.array([0, 1, 2, 1, 0, 1, 3, 0, 1, 2]),
)
PEOPLE = SimpleNamespace(
    name="people",
    owners=OWNERS,
    splits={"train": np.arange(8), "test": np.array([8, 9])},
)
"""Eight training records: three of Ann, three of Bob, one of Cy and one of Di."""


def deal(count, least=1, seed=0):
    part = made_clients("natural", count=count, least=least)
    return [held.tolist() for held in part.deal(PEOPLE, seed=seed)]


def test_natural_client_holds_the_training_records_of_its_owner():
    assert deal(4) == [[0, 4, 7], [1, 3, 5], [2], [6]]


def test_owner_with_too_few_records_is_no_client():
    assert deal(2, least=3) == [[0, 4, 7], [1, 3, 5]]
    with pytest.raises(BenchError, match="people has 2 owners with enough"):
        deal(3, least=3)


def test_fewer_clients_are_drawn_by_the_seed():
    drawn = {str(deal(2, seed=seed)) for seed in range(20)}
    assert len(drawn) > 3
    assert deal(2, seed=1) == deal(2, seed=1)
    everyone = deal(4)
    assert all(held in everyone for seed in range(20) for held in deal(2, seed=seed))


def test_data_without_owners_are_refused():
    part = made_clients("natural", count=2, least=1)
    ownerless = SimpleNamespace(name="digits", owners=None, splits=PEOPLE.splits)
    with pytest.raises(BenchError, match="digits knows no owners"):
        part.deal(ownerless, seed=0)


def test_few_shot_clients_hold_their_owners_images_of_some_classes():
    """Owners 0 and 1 have two images of each class, owner 2 of the first alone."""
    of_class = np.array([0, 1, 0, 1, 2, 2])
    others = np.array([0, 1, 0, 1, 0, 1])
    tasks = SimpleNamespace(
        name="letters",
        owners=Owners(
            names=("ann", "bob", "cy"), of_example=np.stack([of_class, others, others])
        ),
        splits={"train": np.array([0, 1, 2])},
    )
    part = made_clients("natural-tasks", count=2, examples_per_class=2)
    classes, examples = part.draw(tasks, ways=2, seed=3)
    assert classes.shape == (2, 2)
    assert examples.shape == (2, 2, 2)
    for owner in range(2):
        assert len(set(classes[owner].tolist())) == 2
        held = tasks.owners.of_example[classes[owner][:, None], examples[owner]]
        assert (held == owner).all()
        assert all(len(set(row.tolist())) == 2 for row in examples[owner])
    with pytest.raises(BenchError, match="letters has 2 owners"):
        made_clients("natural-tasks", count=3, examples_per_class=2).draw(
            tasks, ways=2, seed=3
        )


# The plan

SIZES = {"examples_per_class": 2, "support_per_class": 1, "query_per_class": 1}
COUNTS = {"people": np.array([[3], [3], [1], [1]]), "digits": None}


def planned_count(dataset="people", **clients):
    clients = {"partition": "natural", "count": 100, **SIZES, **clients}
    values = {"dataset": dataset, "task": {"ways": 10}, "clients": clients}
    return with_natural_count(values, COUNTS.get)["clients"]["count"]


def test_number_of_natural_clients_is_that_of_the_owners():
    assert planned_count(least=1) == 4
    assert planned_count(least=2) == 2
    assert planned_count(least=1, count=3) == 3


def test_number_of_invented_clients_is_the_configured_one():
    values = {"dataset": "people", "clients": {"partition": "shared", "count": 100}}
    assert with_natural_count(values, COUNTS.get) == values


def test_natural_clients_of_data_without_owners_are_refused_in_the_plan():
    with pytest.raises(BenchError, match="digits knows no owners"):
        planned_count("digits")
    with pytest.raises(BenchError, match="no owner with enough examples"):
        planned_count(least=9)
