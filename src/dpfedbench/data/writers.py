"""Drawn writers: the stand-in for FEMNIST, whose clients are people.

`drawnsets.writers` draws 62 characters in the hands of 240 writers of unequal size. A
tenth of each writer's drawings are test records.
"""

from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.images import with_progress
from dpfedbench.data.owners import count_held_out
from dpfedbench.data.records import RawRecords
from drawnsets.fonts import library_versions
from drawnsets.writers import CHARACTERS, WRITERS, count_drawings, draw_writer


def read_writers(local: Path | None, download_dir: Path) -> RawRecords:
    """Draw all writers. The folders are not used."""
    parts: dict[str, list[np.ndarray]] = {}
    writers = range(WRITERS)
    for writer in with_progress(writers, "drawing writers"):
        images, labels = draw_writer(writer)
        tested = count_held_out(len(labels))
        owners = np.full(len(labels), f"writer-{writer:03d}")
        for split, chosen in (
            ("train", slice(tested, None)),
            ("test", slice(0, tested)),
        ):
            parts.setdefault(f"{split}_images", []).append(images[chosen, ..., None])
            parts.setdefault(f"{split}_labels", []).append(labels[chosen])
            parts.setdefault(f"{split}_owners", []).append(owners[chosen])
    arrays: dict[str, Any] = {
        name: np.concatenate(blocks) for name, blocks in parts.items()
    }
    names = tuple(CHARACTERS)
    return RawRecords(**arrays, class_names=names, versions=library_versions())


def count_writers(local: Path | None) -> np.ndarray:
    """Return the number of training records of each writer, int64 [writers, 1]."""
    sizes = count_drawings().sum(axis=1)
    tested = [count_held_out(size) for size in sizes.tolist()]
    return (sizes - np.array(tested))[:, None]


READERS = {"writers": read_writers}
OWNER_COUNTS = {"writers": count_writers}
