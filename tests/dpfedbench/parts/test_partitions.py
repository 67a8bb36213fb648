"""Partitions as parts: identity, clients of different alphabets, rotations."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.config.part import kinds_of
from dpfedbench.config.sections import PartitionScheme
from dpfedbench.data.images import ImageDataset, RawImages
from dpfedbench.errors import BenchError
from dpfedbench.papers import read_run
from dpfedbench.parts.partitions.alphabets import log_dirichlet
from tests.dpfedbench.training.conftest import DIFFERENCE, LOTS, make_config
from tests.partitions import SIZES, made_clients

PAGE = Path(__file__).resolve().parents[3] / "docs" / "add-a-part.md"
GROUPS = {"arab": 24, "latn": 12, "grek": 4}
NAMES = tuple(
    f"{group}/letter{number}"
    for group, count in GROUPS.items()
    for number in range(count)
)


def letters(groups=None):
    """Return a data set of forty training classes in three groups."""
    if groups is None:
        groups = tuple(name.rpartition("/")[0] for name in NAMES)
    return SimpleNamespace(
        name="letters",
        splits={"train": np.arange(40)},
        examples_per_class=6,
        groups=groups,
    )


def draw(clients, ways=3, seed=0, dataset=None, **options):
    """Return classes [clients, ways] and examples of clients of alphabets."""
    part = made_clients("alphabets", count=clients, examples_per_class=4, **options)
    return part.draw(dataset or letters(), ways=ways, seed=seed)


def test_partition_identities_and_folders_do_not_change():
    run = make_config()
    assert run.clients.identity() == {
        "count": 48,
        "examples_per_class": 4,
        "query_per_class": 2,
        "support_per_class": 1,
        "partition": "shared",
    }
    dirichlet = {"partition": "dirichlet", "concentration": 0.3}
    runs = {
        "glyphs/3way-48clients-4examples-shared-seed0": run,
        "glyphs/3way-48clients-4examples-disjoint-seed0": make_config(
            {"clients": {"partition": "disjoint"}}
        ),
        "digits/4clients-20fragments-seed0": make_config(general=LOTS),
        "digits/4clients-dirichlet0.3-least10-seed0": make_config(
            {"method": "dp-fedavg", "clients": dirichlet}, general=DIFFERENCE
        ),
    }
    assert [run.clients_folder for run in runs.values()] == list(runs)
    _, disjoint, fragments, dirichlet_run = runs.values()
    assert disjoint.clients.identity()["partition"] == "disjoint"
    expected = {"partition": "fragments", "fragments": 20}
    assert expected.items() <= fragments.clients.identity().items()
    identity = dirichlet_run.clients.identity()
    assert dirichlet.items() <= identity.items()
    assert "least" not in identity


@pytest.mark.parametrize("kind", sorted(kinds_of(PartitionScheme)))
def test_partition_is_read_from_its_description(kind):
    required = {"fragments": {"fragments": 8}, "dirichlet": {"concentration": 0.5}}
    part = made_clients(kind, count=4, **required.get(kind, {}))
    again, ways = PartitionScheme.from_settings(part.drawn_from(5))
    assert again.drawn_from(ways) == part.drawn_from(5)
    assert again.folder(ways) == part.folder(ways)
    assert ways == (5 if part.holds == "tasks" else 1)
    assert again.text == ""


def test_partition_of_records_is_refused_for_tasks():
    clients = SIZES | {"count": 48, "partition": "fragments", "fragments": 48}
    message = "take alphabets or disjoint or shared, whose clients hold tasks"
    with pytest.raises(BenchError, match=message):
        read_run(make_config().plain() | {"clients": clients})


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


def share_of_one_group(concentration):
    """Return the share of 4,096 clients whose two classes are of one group."""
    classes, _ = draw(4096, ways=2, concentration=concentration)
    groups = np.repeat([0, 1, 2], list(GROUPS.values()))[classes]
    return float((groups[:, 0] == groups[:, 1]).mean())


def test_alphabet_concentration_goes_from_one_alphabet_to_all():
    """A client's two classes are of one group: nearly always, or as often as two of the
    forty classes, (24 x 23 + 12 x 11 + 4 x 3) / (40 x 39) = 0.446.

    Four standard errors of 4,096 clients are 0.031.
    """
    low, middle, high = map(share_of_one_group, (1e-3, 1.0, 1e6))
    assert low > 0.99
    assert low > middle > high
    assert abs(high - 0.4462) < 0.031


@pytest.mark.parametrize("concentration", [0.05, 1.0])
def test_alphabets_are_drawn_by_their_share_of_the_classes(concentration):
    """E[Dir(alpha p)] = p. Four standard errors of an indicator over clients are 0.031
    at most.
    """
    classes, _ = draw(4096, ways=1, concentration=concentration)
    groups = np.repeat([0, 1, 2], list(GROUPS.values()))[classes[:, 0]]
    shares = np.bincount(groups) / 4096
    assert np.allclose(shares, [0.6, 0.3, 0.1], rtol=0, atol=0.031)


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


def test_alphabets_of_a_data_set_without_groups_are_refused():
    message = "but the training classes of letters have no groups: name classes"
    with pytest.raises(BenchError, match=message):
        draw(4, dataset=letters(groups=("",) * 40))


def test_partition_of_the_docs_works_as_a_plugin(tmp_path):
    """The example of docs/add-a-part.md, outside the repository."""
    (_, file), *_ = [
        re.fullmatch(
            r"python src/dpfedbench/(\S+)\n(.*)", block, flags=re.DOTALL
        ).groups()
        for block in re.findall(
            r"```(python src/dpfedbench/parts/partitions.*?)```",
            PAGE.read_text(),
            flags=re.DOTALL,
        )
    ]
    (tmp_path / "halving.py").write_text(file)
    code = """
import numpy as np
from types import SimpleNamespace
from tests.dpfedbench.training.conftest import DIFFERENCE, make_config
run = make_config({"method": "dp-fedavg", "clients": {"partition": "halving", "ratio": 3.0}}, general=DIFFERENCE)
held = run.clients.deal(SimpleNamespace(splits={"train": np.arange(400)}), seed=0)
assert [len(records) for records in held] == [270, 90, 30, 10] and sorted(np.concatenate(held)) == list(range(400))
other = make_config({"method": "dp-fedavg", "clients": {"partition": "halving"}}, general=DIFFERENCE)
assert run.key != other.key and run.clients_folder != other.clients_folder and run.clients.text
print(run.clients.identity()["partition"], len(run.made_by.split()))
"""
    environment = {
        "DPFEDBENCH_PLUGINS": "halving",
        "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{tmp_path}",
    }
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        cwd=PAGE.parents[1],
    )
    assert process.stdout.split() == ["halving", "2"], process.stderr


def test_groups_of_classes_follow_from_their_names():
    """Groups are Omniglot's alphabets or the scripts of drawn letters; others have
    none.
    """
    names = (
        "background/Greek/character01",
        "U+0416 CYRILLIC CAPITAL LETTER ZHE",
        "U+1F600",
        "dog",
    )
    images = np.zeros((4, 2, 1, 1, 1), np.uint8)
    dataset = ImageDataset(
        name="some", images=images, splits={}, class_names=names, summary={}
    )
    assert dataset.groups == ("background/Greek", "CYRILLIC", "", "")


# Rotations


def save_images(folder, values):
    raw = RawImages(
        images=values.astype(np.uint8),
        class_names=("a", "b", "c"),
        splits=("train", "validation", "test"),
        versions={},
    )
    raw.save(folder, {"name": "small"})


def test_rotations_keep_classes_and_images_and_count_a_turned_image_once(tmp_path):
    """Only the folder's name and the turns differ. One training class has four images."""
    save_images(tmp_path, np.arange(3 * 4 * 2 * 2).reshape(3, 4, 2, 2, 1))
    plain_part = made_clients("shared", count=500)
    turned_part = made_clients("shared", count=500, rotations="quarter-turns")
    plain = plain_part.make(tmp_path, ways=1, seed=0)
    turned = turned_part.make(tmp_path, ways=1, seed=0)
    assert plain.quarter_turns is None
    assert set(turned.quarter_turns.ravel()) == {0, 1, 2, 3}
    assert np.array_equal(plain.classes, turned.classes)
    assert np.array_equal(plain.examples, turned.examples)
    assert turned.summary["images_available"] == 4
    assert turned.summary["clients_per_image"] == plain.summary["clients_per_image"]
    assert plain.summary["rotations"] == "none"
    assert turned.summary["rotations"] == "quarter-turns"
    assert plain_part.folder(5) == "5way-500clients-2examples-shared"
    assert turned_part.folder(5) == "5way-500clients-2examples-quarter-turns-shared"
    part, ways = PartitionScheme.from_settings(turned_part.drawn_from(5))
    assert part.rotations == "quarter-turns"
    assert ways == 5


def test_rotations_of_images_that_are_not_square_are_refused(tmp_path):
    save_images(tmp_path, np.zeros((3, 4, 2, 3, 1)))
    part = made_clients("shared", count=5, rotations="quarter-turns")
    with pytest.raises(BenchError, match="2 x 3 pixels: only square ones can be"):
        part.make(tmp_path, ways=1, seed=0)


def test_rotations_of_texts_are_refused():
    part = made_clients("disjoint", count=4, rotations="quarter-turns")
    text = {"words": 100, "record": 10, "refine_batch": 10}
    with pytest.raises(BenchError, match="but clients of this run hold texts"):
        part.check(SimpleNamespace(task=SimpleNamespace(text=text)))
    run = make_config({"clients": {"rotations": "quarter-turns"}})
    assert run.clients.identity()["rotations"] == "quarter-turns"
    assert "rotations" not in make_config().clients.identity()
