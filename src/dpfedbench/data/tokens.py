"""Texts as tasks with the same number of words: readers' results and files on disk.

A task belongs to one author (a role, an article, a module), and its words are the
author's own. A text with fewer words is not a task. Those texts and the validation
tasks, which runs treat as public, are the data set's *public text*. A vocabulary may be
taken from it freely; from any other text it is a release (`config.text`).

On disk there are the three files of images and one more: images.npy (int32 [tasks,
words], indices into words.csv), classes.csv (one task per line), summary.json, and
words.csv, all words in alphabetical order with their count in the public text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from dpfedbench.data.folder_files import read_table, readable_file
from dpfedbench.data.images import (
    SPLITS,
    Content,
    Raw,
    check_splits,
    class_table,
    open_files,
    read_splits,
    shuffled_splits,
)
from dpfedbench.data.sources import Copy
from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, sha256
from dpfedbench.lazy import np

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|[^\sa-z0-9]")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case.

    Numbers and punctuation marks are separate words.
    """
    return _WORD.findall(text.lower().replace("’", "'"))


def decoded(content: bytes, called: str) -> str:
    """Decode a text file's content.

    Raises:
        BenchError: it is not UTF-8, or has NUL characters, as UTF-16 has.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BenchError(
            f"{called} is not UTF-8 ({error.reason} at byte {error.start}): convert it"
        ) from error
    if "\0" in text:
        raise BenchError(
            f"{called} is not a text file, since it has a NUL character: remove it"
        )
    return text


def texts_of(copy: Copy) -> list[tuple[str, str]]:
    """Return names and contents of the files *.txt of a folder or archive, by name.

    Names are without their ending.

    Raises:
        BenchError: the archive is damaged, or a file is not UTF-8.
    """
    return [
        (
            PurePosixPath(name).stem,
            decoded(copy.read(name), f"{copy.path}: {PurePosixPath(name).name}"),
        )
        for name in sorted(copy.files, key=lambda name: PurePosixPath(name).stem)
        if name.endswith(".txt")
    ]


@dataclass(frozen=True, kw_only=True)
class RawTexts(Raw):
    """Texts by task, as a reader returns them.

    Attributes:
        tasks: names and first words of the tasks, the same number of words each.
        splits: one of "train", "validation", "test" per task.
        public: words and counts of the public text other than the validation tasks.
    """

    kind: ClassVar[str] = "texts"

    tasks: tuple[tuple[str, tuple[str, ...]], ...]
    splits: tuple[str, ...]
    public: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check lengths and names; an error here is a bug of the reader."""
        if len({len(words) for _, words in self.tasks}) > 1:
            raise ValueError("tasks need equally many words each")
        check_splits(len(self.tasks), [name for name, _ in self.tasks], self.splits)

    def content(self) -> Content:
        public = Counter(self.public)
        for (_, words), split in zip(self.tasks, self.splits, strict=True):
            if split == "validation":
                public.update(words)
        known = sorted(
            {word for _, words in self.tasks for word in words} | set(public)
        )
        index_of = {word: index for index, word in enumerate(known)}
        tokens = np.array(
            [[index_of[word] for word in words] for _, words in self.tasks],
            dtype=np.int32,
        )
        counts = {
            "classes": len(tokens),
            "examples_per_class": tokens.shape[1],
            "split_classes": {split: self.splits.count(split) for split in SPLITS},
            "words": len(known),
        }
        tables = {
            "classes": class_table([name for name, _ in self.tasks], split=self.splits),
            "words": [("word", "public"), *((word, public[word]) for word in known)],
        }
        return tokens, tables, counts


@dataclass(frozen=True, kw_only=True)
class TextDataset:
    """Prepared data set of texts.

    Attributes:
        name: the registry's name.
        tokens: int32 [tasks, words], indices into `words`; memory-mapped, read-only.
        splits: task indices (int64, ascending) of "train", "validation" and "test";
            disjoint.
        class_names: names of the tasks.
        words: all words, in alphabetical order.
        public_counts: int64 [words], counts in the public text.
        summary: the content of summary.json.
    """

    name: str
    tokens: np.ndarray
    splits: dict[str, np.ndarray]
    class_names: tuple[str, ...]
    words: tuple[str, ...]
    public_counts: np.ndarray
    summary: dict[str, Any]


def is_text(folder: Path | str) -> bool:
    """Return whether a prepared data set holds texts."""
    kind: str = read_json(Path(folder) / "summary.json")["kind"]
    return kind == RawTexts.kind


def load_texts(folder: Path | str) -> TextDataset:
    """Open a prepared data set of texts, and check that it is complete.

    Raises:
        BenchError: a file is missing or was changed, or it is a data set of images.
    """
    folder = Path(folder)
    summary, tokens = open_files(
        folder, RawTexts.kind, ("classes", "examples_per_class")
    )
    with readable_file(folder / "words.csv") as path:
        if sha256(path) != summary.get("words_sha256"):
            raise ValueError("it differs from its summary")
        rows = read_table(path)
        words = [row["word"] for row in rows]
        counts = [int(row["public"]) for row in rows]
    splits, names = read_splits(folder)
    return TextDataset(
        name=summary["name"],
        tokens=tokens,
        splits=splits,
        class_names=names,
        words=tuple(words),
        public_counts=np.array(counts, dtype=np.int64),
        summary=summary,
    )


def cut_into_tasks(
    texts: Iterable[tuple[str, Sequence[str]]],
    *,
    words: int,
    test: float,
    validation: float,
    called: str,
    versions: dict[str, str] | None = None,
) -> RawTexts:
    """Turn each text that is long enough into a task; shorter texts are public.

    A task is the first words of a text. Tasks are split at random, always in the same
    way: a share for the test, then a share of the rest for validation, each rounded up
    (Li et al. 2020, Appendix C).

    Args:
        texts: names and words, in an order that does not depend on the machine.
        words: number of words of a task.
        test: share of test tasks.
        validation: share of validation tasks among the rest.
        called: name of the data set, for the message.
        versions: versions of the libraries that can change a word.

    Raises:
        BenchError: there are too few tasks for the three splits.
    """
    tasks = list[tuple[str, tuple[str, ...]]]()
    public = Counter[str]()
    for name, tokens in texts:
        if len(tokens) >= words:
            tasks.append((name, tuple(tokens[:words])))
        else:
            public.update(tokens)
    tested = math.ceil(test * len(tasks))
    validated = math.ceil(validation * (len(tasks) - tested))
    trained = len(tasks) - tested - validated
    if min(tested, validated, trained) < 1:
        raise BenchError(
            f"{called} has {len(tasks)} texts of at least {words} words: training,"
            " validation and test need at least one each; add texts"
        )
    return RawTexts(
        tasks=tuple(tasks),
        splits=shuffled_splits(len(tasks), (trained, validated, tested)),
        public=public,
        versions=versions or {},
    )
