"""Texts of the user as a data set: a folder with one UTF-8 file per author.

All tasks have the same number of words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpfedbench.config.part import Settings, setting
from dpfedbench.data.folder_files import data_files, folder_of
from dpfedbench.data.images import with_progress
from dpfedbench.data.tokens import RawTexts, cut_into_tasks, decoded, words_of


class TextFolderOptions(Settings):
    """Arguments of `read` in a configuration."""

    folder: str = setting(
        doc="folder of the files *.txt; absolute, or below the local data folder"
    )
    words: int = setting(
        ge=1, doc="number of words of a task; a text with fewer words is public text"
    )
    test: float = setting(0.1, gt=0, lt=1, doc="share of test tasks")
    validation: float = setting(
        0.1, gt=0, lt=1, doc="share of validation tasks among the others"
    )


OPTIONS = TextFolderOptions
"""Schema of this reader's options."""


def read(local: Path | None, download_dir: Path, **options: Any) -> RawTexts:
    """Read the files of a folder, ordered by name.

    Args:
        local: the local data folder; a relative `folder` lies below it.
        options: see `TextFolderOptions`.

    Raises:
        BenchError: a file is no UTF-8 text, or there are too few texts.
    """
    chosen = TextFolderOptions(**options)
    path = folder_of(chosen.folder, local)
    files = [
        file
        for file in data_files(path)
        if file.parent == path and file.suffix == ".txt"
    ]
    texts = [
        (file.stem, words_of(decoded(file.read_bytes(), str(file)))[: chosen.words])
        for file in with_progress(files, "texts: reading")
    ]
    return cut_into_tasks(
        texts,
        words=chosen.words,
        test=chosen.test,
        validation=chosen.validation,
        called=str(path),
    )
