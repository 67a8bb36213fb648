"""The table of data sets, which plans use, has the facts of the readers."""

import csv
from typing import Any

from dpfedbench.data import (
    DATASETS_TABLE,
    cifar,
    drawn,
    mini_imagenet,
    mnist,
    omniglot,
    tiny_imagenet,
)


def classes(counts: Any, examples: int | str) -> str:
    """Return the table's entry of a data set with `counts` classes in each split."""
    return f"classes {'/'.join(map(str, counts))} x {examples}"


def test_data_set_table_has_the_counts_of_the_readers() -> None:
    with open(DATASETS_TABLE, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    counts = {row["name"]: row["holds"].partition(" of ")[0] for row in rows}
    cifar_splits = map(len, cifar.SPLIT_CLASSES.values())
    assert counts["cifar-fs"] == classes(cifar_splits, 600)
    mini_splits = map(len, mini_imagenet.SPLIT_CLASSES.values())
    assert counts["mini-imagenet"] == classes(mini_splits, mini_imagenet.EXAMPLES)
    assert counts["omniglot"] == classes(omniglot.SPLIT_COUNTS, omniglot.DRAWINGS)
    for name, examples in {
        "glyphs": 20,
        "glyph-symbols": 20,
        "glyph-scenes-32": 600,
        "glyph-scenes-84": 200,
    }.items():
        assert counts[name] == classes(drawn.READERS[name].split_counts, examples)
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
    train = 10 * drawn.DIGIT_COUNTS["train"]
    assert counts["digits"] == f"records {train}/{10 * drawn.DIGIT_COUNTS['test']}"
