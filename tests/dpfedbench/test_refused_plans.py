"""Plans that are refused in one line, and the facts about data sets that plans use."""

import csv
import re
from typing import Any

import pytest
import yaml

from dpfedbench import manifests
from dpfedbench.config.merge import set_key
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
from tests.dpfedbench.test_experiments import CONFIG, configuration, plan, refusal

PAPER = "experiments.dp-fedmeta"
TABLE = f"{PAPER}.tables.table2"
FIGURE = f"{PAPER}.figures.figure2b"
RUN = "[in experiments."
NO_NAME = "use lower-case letters, digits and hyphens, at most 64"


def test_configuration_folders_are_those_of_the_workflow() -> None:
    """The rules write below results/, or below a preset's folder there."""
    rules = (CONFIG.parent / "workflow" / "rules").glob("*.smk")
    text = "\n".join(path.read_text(encoding="utf-8") for path in rules)
    folders = set(re.findall(r'(?:"results|\{REPORT\})/(\w+)/', text))
    assert folders | {manifests.FOLDER} <= set(FOLDERS)
    assert len(folders) >= 6


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("seeds", "&a [1, *a]"),
        ("run", "&a {b: *a}"),
        (f"{TABLE}.tasks", "[&a [[*a]]]"),
    ],
)
def test_configuration_that_contains_itself_is_refused(key: str, text: str) -> None:
    """YAML's anchors let a list or a mapping contain itself."""
    values = set_key(configuration("smoke"), key, None)
    section = values
    *sections, last = key.split(".")
    for name in sections:
        section = section[name]
    section[last] = yaml.safe_load(text)
    message = rf"{re.escape(key)}\S* refers to itself: write out what it holds"
    assert re.fullmatch(message, refusal(values))


def test_configuration_that_aliases_make_huge_is_refused() -> None:
    """Each of ten lists has the list before ten times: 1e10 values in 240 letters."""
    text = "l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for i in range(1, 10):
        aliases = ", ".join([f"*l{i - 1}"] * 10)
        text += f"l{i}: &l{i} [{aliases}]\n"
    error = refusal(configuration("smoke") | {"run": yaml.safe_load(text)})
    assert error == "the configuration has more than 1,000,000 values: make it smaller"


def test_plan_with_too_many_disjoint_clients_is_refused() -> None:
    """1,150 classes have 20 images; a client has 6 of each of its 5 classes. So each
    class serves 3 clients, and 1,150 x 3 / 5 clients fit.
    """
    key = f"{TABLE}.series.maml.run"
    clients = {"partition": "disjoint", "count": 690}
    run = {"clients": clients, "participation": {"cohort": 10}}
    plan(configuration("smoke", **{key: run}))
    clients["count"] = 700
    error = refusal(configuration("smoke", **{key: run}))
    assert error.startswith(
        "clients.count is 700, but glyphs has images for 690 clients without shared"
        " images: lower it"
    )


@pytest.fixture(scope="module")
def contents() -> dict[str, tuple[str, str]]:
    """Read the table of data sets: contents and shape of an image, by name."""
    with open(DATASETS_TABLE, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    table = {}
    for row in rows:
        content, _, shape = row["holds"].partition(" of ")
        table[row["name"]] = content, shape
    return table


def test_data_set_table_has_the_shape_of_the_images(contents: Any) -> None:
    sides = {"cifa": "32", "mini": "84", "tiny": "64"}
    for name, (content, shape) in contents.items():
        if content == "texts":
            assert shape == "", name
            continue
        size_in_name = re.search(r"(?:scenes|imagenet-100)-(\d+)$", name)
        side = size_in_name[1] if size_in_name else sides.get(name[:4], "28")
        channels = 1 if side == "28" else 3
        assert shape == f"{side}x{side}x{channels}", name


def classes(counts: Any, examples: int | str) -> str:
    """Return the table's entry of a data set with `counts` classes in each split."""
    return f"classes {'/'.join(map(str, counts))} x {examples}"


def test_data_set_table_has_the_counts_of_the_readers(contents: Any) -> None:
    counts = {name: content for name, (content, _) in contents.items()}
    cifar_splits = map(len, cifar.SPLIT_CLASSES.values())
    assert counts["cifar-fs"] == classes(cifar_splits, cifar.FEW_SHOT_EXAMPLES)
    mini_splits = map(len, mini_imagenet.SPLIT_CLASSES.values())
    assert counts["mini-imagenet"] == classes(mini_splits, mini_imagenet.EXAMPLES)
    assert counts["omniglot"] == classes(omniglot.SPLIT_COUNTS, omniglot.DRAWINGS)
    assert counts["glyphs"].startswith(classes(glyphs.SPLIT_COUNTS, 20))
    scenes = classes(glyph_scenes.SPLIT_COUNTS, "")
    assert counts["glyph-scenes-32"].startswith(scenes)
    assert counts["glyph-scenes-84"].startswith(scenes)
    for name, (class_count, examples) in tiny_imagenet.COUNTS.items():
        _, splits, _, stated_examples = counts[name.removesuffix("-200")].split()
        assert sum(map(int, splits.split("/"))) == class_count
        assert stated_examples == str(examples)
    for name, reader in (
        ("mnist", mnist._MNIST),
        ("fashion-mnist", mnist._FASHION_MNIST),
    ):
        train = sum(reader.counts["train"])
        assert counts[name] == f"records {train}/{sum(reader.counts['test'])}"
    train = 10 * digits.COUNTS["train"]
    assert counts["digits"] == f"records {train}/{10 * digits.COUNTS['test']}"
