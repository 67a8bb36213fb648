"""Partitions as parts: which there are, what they say of themselves, and few-shot
clients of different alphabets.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.data.images import ImageDataset, RawImages
from dpfedbench.errors import BenchError
from dpfedbench.papers import read_run
from dpfedbench.parts.partitions.alphabets import log_dirichlet
from dpfedbench.settings.part import kinds_of
from dpfedbench.settings.sections import PartitionScheme
from tests.dpfedbench.federation.conftest import DIFFERENCE, LOTS, make_config
from tests.partitions import SIZES, made_clients

PAGE = Path(__file__).resolve().parents[3] / "docs" / "add-a-part.md"
GROUPS = {"arab": 24, "latn": 12, "grek": 4}
NAMES = tuple(
    f"{group}/letter{number}"
    for group, count in GROUPS.items()
    for number in range(count)
)


def letters(groups=None):
    """A data set of forty classes in three groups, all of them for training."""
    groups = (
        tuple(name.rpartition("/")[0] for name in NAMES) if groups is None else groups
    )
    return SimpleNamespace(
        name="letters",
        splits={"train": np.arange(40)},
        examples_per_class=6,
        groups=groups,
    )


def drawn(clients, ways=3, seed=0, dataset=None, **own):
    part = made_clients("alphabets", count=clients, examples_per_class=4, **own)
    return part.draw(dataset or letters(), ways=ways, seed=seed)


def test_each_run_of_the_past_reads_as_it_did():
    """Keys that every partition had, at their defaults; the folders of clients; and
    what a run is known by.
    """
    old = {"partition": "shared", "fragments": None, "concentration": None, "least": 10}
    run = read_run(
        make_config().plain()
        | {"clients": SIZES | {"count": 48, "examples_per_class": 4} | old}
    )
    assert run.clients.identity() == {
        "count": 48,
        "examples_per_class": 4,
        "query_per_class": 1,
        "support_per_class": 1,
    }
    assert run.clients_folder == "glyphs/3way-48clients-4examples-shared-seed0"
    disjoint = make_config({"clients": {"partition": "disjoint"}})
    assert disjoint.clients.identity()["partition"] == "disjoint"
    assert disjoint.clients_folder == "glyphs/3way-48clients-4examples-disjoint-seed0"
    fragments = make_config(general=LOTS)
    assert {
        "partition": "fragments",
        "fragments": 20,
    }.items() <= fragments.clients.identity().items()
    assert fragments.clients_folder == "digits/4clients-20fragments-seed0"
    wanted = {"partition": "dirichlet", "concentration": 0.3}
    dirichlet = make_config(
        {"method": "dp-fedavg", "clients": wanted}, general=DIFFERENCE
    )
    assert (
        wanted.items() <= dirichlet.clients.identity().items()
        and "least" not in dirichlet.clients.identity()
    )
    assert dirichlet.clients_folder == "digits/4clients-dirichlet0.3-least10-seed0"


@pytest.mark.parametrize("kind", sorted(kinds_of(PartitionScheme)))
def test_a_partition_is_made_again_of_what_it_is_drawn_from(kind):
    own = {"fragments": {"fragments": 8}, "dirichlet": {"concentration": 0.5}}.get(
        kind, {}
    )
    part = made_clients(kind, count=4, **own)
    again, ways = PartitionScheme.of(part.drawn_from(5))
    assert again.drawn_from(ways) == part.drawn_from(5) and again.folder(
        ways
    ) == part.folder(ways)
    assert ways == (5 if part.holds == "tasks" else 1) and again.text == ""


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (
            {"partition": "sharde"},
            'clients.partition is "sharde"',
        ),
        (
            {"partition": "shared", "fragments": 3},
            "unknown key clients.fragments",
        ),
        (
            {"partition": "shared", "least": 11},
            "unknown key clients.least",
        ),
        (
            {"partition": "fragments", "fragments": 48},
            "take alphabets or disjoint or shared, whose clients hold tasks",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(clients, message):
    with pytest.raises(BenchError, match=message):
        read_run(make_config().plain() | {"clients": SIZES | {"count": 48} | clients})


def test_clients_of_alphabets_hold_distinct_classes_and_depend_on_the_seed_alone():
    classes, examples = drawn(5000)
    assert (np.diff(np.sort(classes, axis=1), axis=1) > 0).all() and classes.max() < 40
    assert (np.diff(np.sort(examples, axis=2), axis=2) > 0).all() and examples.max() < 6
    fewer, other = drawn(4200), drawn(5000, seed=1)
    assert np.array_equal(fewer[0], classes[:4200]) and np.array_equal(
        fewer[1], examples[:4200]
    )
    assert not np.array_equal(other[0], classes)


def share_of_one_group(concentration, clients=4096):
    groups = np.array([name.partition("/")[0] for name in NAMES])[
        drawn(clients, ways=2, concentration=concentration)[0]
    ]
    return float((groups[:, 0] == groups[:, 1]).mean())


def test_the_concentration_goes_from_one_alphabet_to_all():
    """Two classes of one client are of one group: nearly always, or as for two of the
    forty at random.

    At random: (24 x 23 + 12 x 11 + 4 x 3) / (40 x 39) = 0.446. Four standard errors of
    4,096 clients are 0.031.
    """
    assert share_of_one_group(1e-3) > 0.99
    assert abs(share_of_one_group(1e6) - 0.4462) < 0.031
    assert share_of_one_group(1e-3) > share_of_one_group(1.0) > share_of_one_group(1e6)


def test_groups_are_drawn_by_their_share_of_the_classes():
    """A client's first class is of a group as often as the group has classes:
    E[Dir(alpha p)] = p.
    """
    for concentration in (0.05, 1.0):
        first = drawn(4096, ways=1, concentration=concentration)[0][:, 0]
        shares = np.bincount(np.repeat([0, 1, 2], [24, 12, 4])[first]) / 4096
        # The variance of an indicator over clients: four standard errors are at most
        # 0.031.
        assert np.allclose(shares, [0.6, 0.3, 0.1], rtol=0, atol=0.031)


def test_logarithms_of_a_dirichlet_draw_have_its_moments():
    """E[w_i] = a_i / a and Var[w_i] = m (1 - m) / (a + 1); of a tiny alpha no weight is
    0/0.
    """
    alphas = np.array([0.5, 1.0, 2.5])
    logs = log_dirichlet(np.random.default_rng(0), alphas, 40_000)
    weights = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    mean = alphas / 4
    assert np.allclose(weights.mean(axis=0), mean, atol=4 * 0.5 / 200)
    assert np.allclose(weights.var(axis=0), mean * (1 - mean) / 5, rtol=0.05)
    tiny = log_dirichlet(np.random.default_rng(0), np.full(3, 1e-4), 1000)
    assert np.isfinite(tiny).all()


def test_a_data_set_without_groups_is_refused_in_one_line():
    with pytest.raises(
        BenchError,
        match="but the training classes of letters are in no groups: take classes",
    ):
        drawn(4, dataset=letters(groups=("",) * 40))


def test_a_partition_of_ones_own_is_one_file_outside_the_repository(tmp_path):
    """The example of docs/add-a-part.md as a plugin: found, checked, and another run
    where it differs.
    """
    (_, file), *_ = [
        re.fullmatch(r"python src/dpfedbench/(\S+)\n(.*)", block, flags=re.S).groups()
        for block in re.findall(
            r"```(python src/dpfedbench/parts/partitions.*?)```",
            PAGE.read_text(),
            flags=re.S,
        )
    ]
    (tmp_path / "halving.py").write_text(file)
    code = """
import numpy as np
from types import SimpleNamespace
from tests.dpfedbench.federation.conftest import DIFFERENCE, make_config
run = make_config({"method": "dp-fedavg", "clients": {"partition": "halving", "ratio": 3.0}}, general=DIFFERENCE)
held = run.clients.deal(SimpleNamespace(splits={"train": np.arange(400)}), seed=0)
assert [len(own) for own in held] == [270, 90, 30, 10] and sorted(np.concatenate(held)) == list(range(400))
other = make_config({"method": "dp-fedavg", "clients": {"partition": "halving"}}, general=DIFFERENCE)
assert run.key != other.key and run.clients_folder != other.clients_folder and run.clients.text
print(run.clients.identity()["partition"], len(run.made_by.split()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {
            "DPFEDBENCH_PLUGINS": "halving",
            "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{tmp_path}",
        },
        capture_output=True,
        text=True,
        cwd=PAGE.parents[1],
    )
    assert done.stdout.split() == ["halving", "2"], done.stderr


def test_groups_are_read_off_the_names_of_classes():
    """Omniglot's alphabets, the scripts of drawn letters, and nothing where a name says
    nothing.
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


def test_rotations_keep_classes_and_images_and_count_a_turned_image_once(tmp_path):
    """The folder has another name; who holds which image does not change."""
    values = np.arange(3 * 4 * 2 * 2).reshape(3, 4, 2, 2, 1)
    RawImages(
        images=values.astype(np.uint8),
        class_names=("a", "b", "c"),
        splits=("train", "validation", "test"),
        versions={},
    ).save(tmp_path, {"name": "small"})
    plain = made_clients("shared", count=500)
    turned = made_clients("shared", count=500, rotations="quarter-turns")
    made, rotated = (part.make(tmp_path, ways=1, seed=0) for part in (plain, turned))
    assert made.quarter_turns is None and set(rotated.quarter_turns.ravel()) == {
        *range(4)
    }
    assert np.array_equal(made.classes, rotated.classes)
    assert np.array_equal(made.examples, rotated.examples)
    # Four images of one training class.
    assert rotated.summary["images_available"] == 4
    assert rotated.summary["clients_per_image"] == made.summary["clients_per_image"]
    assert "rotations" not in made.summary
    assert rotated.summary["rotations"] == "quarter-turns"
    assert plain.folder(5) == "5way-500clients-2examples-shared"
    assert turned.folder(5) == "5way-500clients-2examples-quarter-turns-shared"
    read, ways = PartitionScheme.of(turned.drawn_from(5))
    assert (read.rotations, ways) == ("quarter-turns", 5)


def test_rotations_need_square_images(tmp_path):
    RawImages(
        images=np.zeros((3, 4, 2, 3, 1), np.uint8),
        class_names=("a", "b", "c"),
        splits=("train", "validation", "test"),
        versions={},
    ).save(tmp_path, {"name": "wide"})
    part = made_clients("shared", count=5, rotations="quarter-turns")
    with pytest.raises(BenchError, match="2 x 3 pixels: only square ones can be"):
        part.make(tmp_path, ways=1, seed=0)


def test_rotations_are_refused_for_records_and_texts():
    turned = {"rotations": "quarter-turns"}
    with pytest.raises(BenchError, match=r"unknown key clients\.rotations"):
        make_config({"method": "transfer", "clients": turned})
    text = {"words": 100, "record": 10, "refine_batch": 10}
    part = made_clients("disjoint", count=4, **turned)
    with pytest.raises(BenchError, match="but clients of this run hold texts"):
        part.check(SimpleNamespace(task=SimpleNamespace(text=text)))
    assert make_config({"clients": turned}).clients.identity()["rotations"] == (
        "quarter-turns"
    )
    assert "rotations" not in make_config().clients.identity()
