"""Inputs of models that read a fixed feature map of each record.

The features are computed here, or once for all runs that read them. If the map is slow
(`ModelSettings.made_once`), a separate job computes the features of all records of a
data set and writes them to a file; trainings and tests read that file. The bits are the
same either way, because a record's features do not depend on the records computed with
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.records import RecordDataset, held_out_places, load_records
from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_json, reading, sha256, write_json
from dpfedbench.manifests import mend
from dpfedbench.run import Run

FEATURES = "features.npy"
SUMMARY = "features.json"
_PIECE = 1024


def make_features(run: Run, *, data_dir: Path, out_dir: Path) -> None:
    """Write the model's features of all records of the run's data set.

    They are computed in pieces to save memory. features.npy has float32 [records, ...]
    in the data set's order. features.json is written last and holds the settings and
    data of the features.

    Raises:
        BenchError: data are missing or damaged.
    """
    dataset = load_records(data_dir)
    public = _public(run, dataset)
    with atomic_path(out_dir / FEATURES) as temporary:
        array = None
        for start in range(0, len(dataset.images), _PIECE):
            piece = run.model.prepared(
                np.asarray(dataset.images[start : start + _PIECE]), public
            )
            if array is None:
                shape = (len(dataset.images), *piece.shape[1:])
                array = np.lib.format.open_memmap(
                    temporary, mode="w+", dtype=piece.dtype, shape=shape
                )
            array[start : start + len(piece)] = piece
        del array
    write_json(
        out_dir / SUMMARY, _of(run, dataset) | {"sha256": sha256(out_dir / FEATURES)}
    )


def features_of(
    run: Run,
    dataset: RecordDataset,
    places: Iterable[np.ndarray],
    files: Mapping[str, Path] | None = None,
) -> list[np.ndarray]:
    """Return the inputs of the run's model for each list of record indices.

    Args:
        run: the run.
        dataset: its data set.
        places: record indices, int64 [n] each.
        files: files of other jobs, by name. If the features are among them, they are
            read; otherwise they are computed.

    Raises:
        BenchError: the file is missing or damaged, or was made from other data or
            settings.
    """
    path = (files or {}).get(FEATURES)
    if path is not None:
        features = _opened(path, _of(run, dataset))
        return [features[rows] for rows in places]
    public = _public(run, dataset)
    return [
        run.model.prepared(np.asarray(dataset.images[rows]), public) for rows in places
    ]


def _public(run: Run, dataset: RecordDataset) -> np.ndarray | None:
    """Return the public images that the map may depend on.

    None: a trained body reads none, because it was trained on other classes.
    """
    return (
        None
        if run.pretrains
        else np.asarray(
            dataset.images[held_out_places(dataset, run.validation.tasks)[0]]
        )
    )


def _of(run: Run, dataset: RecordDataset) -> dict[str, Any]:
    """Return the settings on which features depend, as in features.json."""
    return {
        "dataset": dataset.name,
        "images": dataset.summary["sha256"],
        **(run.model.made_once(run) or {}),
    }


def _opened(path: Path, of: Mapping[str, Any]) -> np.ndarray:
    """Open the features of all records, mapped into memory."""
    summary = dict(read_json(path.with_name(SUMMARY)))
    digest = summary.pop("sha256", None)
    if summary != of:
        raise BenchError(
            f"{path} was made from other data or settings than this run has:"
            f" {mend(path, 'features')}"
        )
    with reading(path):
        if sha256(path) != digest:
            raise BenchError(f"{path} is damaged: {mend(path, 'features')}")
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
