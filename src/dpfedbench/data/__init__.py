"""Data sets, simulated clients and few-shot tasks."""

from pathlib import Path

DATASETS_TABLE = Path(__file__).with_name("datasets.tsv")
"""The data sets that come with dpfedbench, one a row:

- name: as in the configuration, in folder names and in tables;
- version: of its content as prepared here, raised when a pixel or a word may change;
- source, licence: where it comes from, and its terms;
- sha256: of images.npy as prepared when the row was written; "-" if no copy was at
  hand;
- holds: what a plan may know of it: "classes 64/16/20 x 600 of 32x32x3" (training,
  validation and test classes of so many images, of height, width and channels),
  "records 60000/10000 of 28x28x1" (training and test), "texts";
- stands_in_for: the data set that a stand-in takes the place of; "-" for real data.

What makes each is in the `READERS` of a module of this package.
"""
