"""What no folder, data set, figure or machine can take is refused in one line when the
plan is made, and no later.
"""

import csv
import re
from typing import Any

import pytest
import yaml

from dpfedbench import manifests
from dpfedbench.data import (
    DATASETS_TABLE,
    cifar,
    digits,
    glyph_scenes,
    glyphs,
    mini_imagenet,
    mnist,
    omniglot,
    tiny_imagenet,
)
from dpfedbench.experiments.configuration import FOLDERS
from dpfedbench.settings.merge import set_key
from tests.dpfedbench.test_experiments import CONFIG, configuration, plan, refusal

PAPER = "experiments.dp-fedmeta"
TABLE = f"{PAPER}.tables.table2"
FIGURE = f"{PAPER}.figures.figure2b"
RUN = "[in experiments."
NO_NAME = "use lower-case letters, digits and hyphens, at most 64"


def test_those_folders_are_the_workflows() -> None:
    """What its files name below results/, or below a preset's folder, which may be
    results/ itself.
    """
    texts = [
        path.read_text(encoding="utf-8")
        for path in (CONFIG.parent / "workflow" / "rules").glob("*.smk")
    ]
    found = set(re.findall(r'"results/(\w+)/|\{REPORT\}/(\w+)/', "\n".join(texts)))
    assert {one or other for one, other in found} | {manifests.FOLDER} <= set(FOLDERS)
    assert len(found) >= 6


@pytest.mark.parametrize(
    ("key", "text"),
    [("seeds", "&a [1, *a]"), ("run", "&a {b: *a}"), (f"{TABLE}.tasks", "[&a [[*a]]]")],
)
def test_what_refers_to_itself_is_one_line(key: str, text: str) -> None:
    """As YAML lets a list or a group do."""
    found = set_key(configuration("smoke"), key, None)
    *above, last = key.split(".")
    place = found
    for name in above:
        place = place[name]
    place[last] = yaml.safe_load(text)
    assert re.fullmatch(
        rf"{re.escape(key)}\S* refers to itself: write out what it holds",
        refusal(found),
    )


def test_what_aliases_make_huge_is_one_line() -> None:
    """Ten lists, each of ten times the one before: 240 letters of YAML for ten thousand
    million values.
    """
    lists = "".join(
        f"l{i}: &l{i} [{', '.join(['1' if i == 0 else f'*l{i - 1}'] * 10)}]\n"
        for i in range(10)
    )
    said = refusal(configuration("smoke") | {"run": yaml.safe_load(lists)})
    assert said == "the configuration has more than 1,000,000 values: make it smaller"


def test_clients_that_share_no_image_have_to_fit() -> None:
    """1,150 classes of 20 images, 6 a client and class: 3 shares of each class, 1,150 x
    3 / 5 clients.
    """
    key = f"{TABLE}.series.maml.run"
    clients = {"partition": "disjoint", "count": 690}
    run = {"clients": clients, "participation": {"cohort": 10}}
    plan(configuration("smoke", **{key: run}))
    clients["count"] = 700
    said = refusal(configuration("smoke", **{key: run}))
    assert said.startswith(
        "clients.count is 700, but glyphs has images for 690 clients that share none:"
        " lower it"
    )


def test_what_a_plan_knows_of_data_sets_is_what_their_readers_give() -> None:
    with open(DATASETS_TABLE, newline="", encoding="utf-8") as handle:
        said = {
            row["name"]: row["holds"].partition(" of ")
            for row in csv.DictReader(handle, delimiter="\t")
        }
    holds, shapes = (
        {name: parts[part] for name, parts in said.items()} for part in (0, 2)
    )
    for name, shape in shapes.items():
        named = re.search(r"(?:scenes|imagenet-100)-(\d+)$", name)
        side = (
            named[1]
            if named
            else {"cifa": "32", "mini": "84", "tiny": "64"}.get(name[:4], "28")
        )
        assert shape == (
            ""
            if holds[name] == "texts"
            else f"{side}x{side}x{1 if side == '28' else 3}"
        ), name

    def classes(counts: Any, each: int) -> str:
        return f"classes {'/'.join(map(str, counts))} x {each}"

    assert holds["cifar-fs"] == classes(
        map(len, cifar.SPLIT_CLASSES.values()), cifar.FEW_SHOT_EXAMPLES
    )
    assert holds["mini-imagenet"] == classes(
        map(len, mini_imagenet.SPLIT_CLASSES.values()), mini_imagenet.EXAMPLES
    )
    assert holds["omniglot"] == classes(omniglot.SPLIT_COUNTS, omniglot.DRAWINGS)
    assert holds["glyphs"].startswith(classes(glyphs.SPLIT_COUNTS, 20))
    for size in (32, 84):
        assert holds[f"glyph-scenes-{size}"].startswith(
            f"classes {'/'.join(map(str, glyph_scenes.SPLIT_COUNTS))} x "
        )
    for name, (count, each) in tiny_imagenet.COUNTS.items():
        found = holds[name.removesuffix("-200")]
        assert sum(map(int, found.split()[1].split("/"))) == count
        assert found.endswith(f" x {each}")
    for name, counts in (
        ("mnist", mnist._MNIST.counts),
        ("fashion-mnist", mnist._FASHION_MNIST.counts),
    ):
        assert holds[name] == f"records {sum(counts['train'])}/{sum(counts['test'])}"
    assert (
        holds["digits"]
        == f"records {10 * digits.COUNTS['train']}/{10 * digits.COUNTS['test']}"
    )
