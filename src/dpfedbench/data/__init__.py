"""Data sets, simulated clients and few-shot tasks."""

import csv
from pathlib import Path

DATASETS_TABLE = Path(__file__).with_name("datasets.tsv")
"""Table of the data sets that come with dpfedbench, one per row.

- name: as in the configuration, in folder names and in tables;
- version: version of the prepared content, raised when a pixel or a word may change;
- source, licence: origin and terms of use;
- sha256: digest of images.npy as prepared when the row was written; "-" if no copy was
  at hand (the readers of CIFAR compare each file with its published checksum anyway);
- holds: what a plan may know about it: "classes 64/16/20 x 600 of 32x32x3" (training,
  validation and test classes, images per class, height, width and channels), "records
  60000/10000 of 28x28x1" (training and test), "texts";
- stands_in_for: the data set that a stand-in replaces; "-" for real data.

The `READERS` of the modules in this package make the data sets.
"""


def read_table() -> dict[str, dict[str, str]]:
    """Return the rows of `DATASETS_TABLE` by the name of the data set."""
    with open(DATASETS_TABLE, newline="", encoding="utf-8") as handle:
        return {row["name"]: row for row in csv.DictReader(handle, delimiter="\t")}
