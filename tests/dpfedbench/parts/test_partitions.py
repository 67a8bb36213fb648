"""Partitions as parts: identity, clients of different alphabets, rotations."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.config.part import kinds_of
from dpfedbench.config.sections import PartitionScheme
from dpfedbench.data.images import ImageDataset
from dpfedbench.parts.partitions.alphabets import log_dirichlet
from tests.dpfedbench.training.conftest import DIFFERENCE, LOTS, make_config
from tests.partitions import made_clients

GROUPS = {"arab": 24, "latn": 12, "grek": 4}
LETTERS = SimpleNamespace(
    name="letters",
    splits={"train": np.arange(40)},
    examples_per_class=6,
    groups=tuple(np.repeat(list(GROUPS), list(GROUPS.values()))),
)
"""A data set of forty training classes in three groups."""


def draw(clients, ways=3, seed=0, **options):
    """Return classes [clients, ways] and examples of clients of alphabets."""
    part = made_clients("alphabets", count=clients, examples_per_class=4, **options)
    return part.draw(LETTERS, ways=ways, seed=seed)


def test_partition_folders_do_not_change():
    dirichlet = {"partition": "dirichlet", "concentration": 0.3}
    disjoint = {"clients": {"partition": "disjoint"}}
    difference = {"method": "dp-fedavg", "clients": dirichlet}
    runs = {
        "glyphs/3way-48clients-4examples-shared-seed0": make_config(),
        "glyphs/3way-48clients-4examples-disjoint-seed0": make_config(disjoint),
        "digits/4clients-20fragments-seed0": make_config(general=LOTS),
        "digits/4clients-dirichlet0.3-least10-seed0": make_config(
            difference, general=DIFFERENCE
        ),
    }
    assert [run.clients_folder for run in runs.values()] == list(runs)


@pytest.mark.parametrize("kind", sorted(kinds_of(PartitionScheme)))
def test_partition_is_read_from_its_description(kind):
    required = {"fragments": {"fragments": 8}, "dirichlet": {"concentration": 0.5}}
    part = made_clients(kind, count=4, **required.get(kind, {}))
    again, ways = PartitionScheme.from_settings(part.drawn_from(5))
    assert again.drawn_from(ways) == part.drawn_from(5)
    assert again.folder(ways) == part.folder(ways)


def test_alphabet_clients_hold_distinct_classes_and_depend_on_the_seed_alone():
    classes, examples = draw(5000)
    assert (np.diff(np.sort(classes, axis=1), axis=1) > 0).all()
    assert classes.max() < 40
    assert (np.diff(np.sort(examples, axis=2), axis=2) > 0).all()
    assert examples.max() < 6
    fewer_classes, fewer_examples = draw(4200)
    assert np.array_equal(fewer_classes, classes[:4200])
    assert np.array_equal(fewer_examples, examples[:4200])
    assert not np.array_equal(draw(5000, seed=1)[0], classes)


def test_alphabet_concentration_goes_from_one_alphabet_to_all():
    """Two of the forty classes are of one group with probability 0.446 = (24 x 23 + 12 x
    11 + 4 x 3) / (40 x 39). Four standard errors of 4,096 clients are 0.031.
    """
    shares = []
    for concentration in (1e-3, 1.0, 1e6):
        classes, _ = draw(4096, ways=2, concentration=concentration)
        groups = np.array(LETTERS.groups)[classes]
        shares.append((groups[:, 0] == groups[:, 1]).mean())
    low, middle, high = shares
    assert low > 0.99
    assert low > middle > high
    assert abs(high - 0.4462) < 0.031


def test_log_dirichlet_has_the_moments_of_the_distribution():
    """E[w_i] = a_i / a and Var[w_i] = m (1 - m) / (a + 1). A tiny alpha gives no 0/0."""
    alphas = np.array([0.5, 1.0, 2.5])
    logs = log_dirichlet(np.random.default_rng(0), alphas, 40_000)
    weights = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    mean = alphas / 4
    assert np.allclose(weights.mean(axis=0), mean, atol=4 * 0.5 / 200)
    assert np.allclose(weights.var(axis=0), mean * (1 - mean) / 5, rtol=0.05)
    tiny = log_dirichlet(np.random.default_rng(0), np.full(3, 1e-4), 1000)
    assert np.isfinite(tiny).all()


def test_groups_of_classes_follow_from_their_names():
    """Groups are Omniglot's alphabets or the scripts of drawn letters."""
    letter = "U+0416 CYRILLIC CAPITAL LETTER ZHE"
    names = ("background/Greek/character01", letter, "U+1F600", "dog")
    values = {"name": "some", "splits": {}, "summary": {}}
    dataset = ImageDataset(images=np.zeros((4, 2, 1)), class_names=names, **values)
    assert dataset.groups == ("background/Greek", "CYRILLIC", "", "")


def test_rotations_keep_classes_and_images_and_count_a_turned_image_once(federation):
    """Only the folder's name and the turns differ."""
    plain_part = made_clients("shared", count=500)
    turned_part = made_clients("shared", count=500, rotations="quarter-turns")
    plain = plain_part.make(federation[0], ways=1, seed=0)
    turned = turned_part.make(federation[0], ways=1, seed=0)
    assert plain.quarter_turns is None
    assert set(turned.quarter_turns.ravel()) == {0, 1, 2, 3}
    assert np.array_equal(plain.classes, turned.classes)
    assert np.array_equal(plain.examples, turned.examples)
    assert turned.summary["clients_per_image"] == plain.summary["clients_per_image"]
    assert turned_part.folder(5) == "5way-500clients-2examples-quarter-turns-shared"
