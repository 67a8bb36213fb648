"""Texts as tasks of equally many words: what a reader hands over, and how it lies on disk.

A task is one author's (a role, an article, a module). Its words are the author's own; a text of fewer words is nobody's
task. Those texts and the validation tasks, which runs take for public, are the data set's *public text*: a vocabulary
may be taken from it freely, and from anything else only as a release (`settings.text`).

It lies in the same three files as images, and one more: images.npy (int32 [tasks, words], places in words.csv),
classes.csv (a task a line), summary.json, and words.csv, all words in alphabetical order with their count in the
public text.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.images import SPLITS, damaged_classes, foreign_summary, read_classes, shuffled_splits
from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_json, sha256, write_json, write_text, writing

KIND = "texts"

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|[^\sa-z0-9]")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; numbers and punctuation marks are words of their own."""
    return _WORD.findall(text.lower().replace("’", "'"))


def decoded(content: bytes, called: str) -> str:
    """A text file's content.

    Raises:
        BenchError: it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BenchError(f"{called} is not UTF-8 ({error.reason} at byte {error.start}): convert it") from error


@dataclass(frozen=True, kw_only=True)
class RawTexts:
    """What a reader hands over before anything is written.

    Attributes:
        tasks: names and first words of the tasks, equally many of each.
        splits: one of "train", "validation", "test" per task.
        public: words of the public text besides the validation tasks', with counts.
        public_text: what that text is, for people.
        versions: of the libraries whose version can change a word.
        facts: what else summary.json is to say of it.
    """

    tasks: tuple[tuple[str, tuple[str, ...]], ...]
    splits: tuple[str, ...]
    public: Mapping[str, int]
    public_text: str
    versions: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check lengths and names; a fault here is ours, not the user's."""
        if len({len(words) for _, words in self.tasks}) > 1 or len({name for name, _ in self.tasks}) != len(self.tasks):
            raise ValueError("tasks need equally many words each, and names of their own")
        if len(self.splits) != len(self.tasks) or not set(self.splits) <= set(SPLITS):
            raise ValueError("one split per task is needed")

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write images.npy, words.csv, classes.csv and, last, summary.json, each whole or not at all.

        Raises:
            BenchError: the folder cannot be written to.
        """
        public = Counter(self.public)
        for (_, words), split in zip(self.tasks, self.splits, strict=True):
            if split == "validation":
                public.update(words)
        known = sorted({word for _, words in self.tasks for word in words} | set(public))
        place = {word: index for index, word in enumerate(known)}
        tokens = np.array([[place[word] for word in words] for _, words in self.tasks], dtype=np.int32)
        with writing(folder / "summary.json"):
            (folder / "summary.json").unlink(missing_ok=True)
        with atomic_path(folder / "images.npy") as temporary, open(temporary, "wb") as handle:
            np.save(handle, tokens, allow_pickle=False)
        write_text(folder / "words.csv", _table([("word", "public"), *((word, public[word]) for word in known)]))
        rows = zip(range(len(tokens)), (name for name, _ in self.tasks), self.splits, strict=True)
        write_text(folder / "classes.csv", _table([("index", "name", "split"), *rows]))
        digest, recorded = sha256(folder / "images.npy"), facts.get("recorded_sha256")
        summary = {
            **facts,
            **self.facts,
            "kind": KIND,
            "sha256": digest,
            "matches_record": None if recorded is None else digest == recorded,
            "words_sha256": sha256(folder / "words.csv"),
            "classes": len(tokens),
            "examples_per_class": tokens.shape[1],
            "split_classes": {split: self.splits.count(split) for split in SPLITS},
            "words": len(known),
            "public_text": f"{self.public_text}; and the validation tasks",
            "public_words": sum(count > 0 for count in public.values()),
            "made_with": self.versions,
        }
        write_json(folder / "summary.json", summary)


@dataclass(frozen=True, kw_only=True)
class TextDataset:
    """A data set of texts as the rest of the library sees it.

    Attributes:
        name: the registry's name.
        tokens: int32 [tasks, words], places in `words`; memory-mapped, read-only.
        splits: task indices (int64, ascending) of "train", "validation" and "test"; disjoint.
        class_names: of the tasks.
        words: all words, in alphabetical order.
        public_counts: int64 [words], of the public text.
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
    """Whether a prepared data set is one of texts."""
    summary = read_json(Path(folder) / "summary.json")
    return isinstance(summary, Mapping) and summary.get("kind") == KIND


def load_texts(folder: Path | str) -> TextDataset:
    """Open a prepared data set of texts, checking that it is whole.

    Raises:
        BenchError: a file is missing, or is not what was written there; or it is a data set of images.
    """
    folder = Path(folder)
    summary, mend = read_json(folder / "summary.json"), f"delete {folder} and run the workflow again"
    try:
        if summary.get("kind") != KIND:
            raise BenchError(f"{summary['name']} (in {folder}) is of images, and this run needs texts: see task.text")
        name, digest, shape = summary["name"], summary["sha256"], (summary["classes"], summary["examples_per_class"])
    except (AttributeError, KeyError, TypeError) as error:
        raise foreign_summary(folder, f"no {error}") from error
    try:
        tokens = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        if tokens.shape != shape or tokens.dtype != np.int32 or sha256(folder / "images.npy") != digest:
            raise ValueError("its content is not what its summary says")
        if sha256(folder / "words.csv") != summary.get("words_sha256"):
            raise ValueError("words.csv is not what its summary says")
        with open(folder / "words.csv", newline="", encoding="utf-8") as handle:
            listed = [(row["word"], int(row["public"])) for row in csv.DictReader(handle)]
    except FileNotFoundError as error:
        raise BenchError(f"{error.filename} is missing: {mend}") from error
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise BenchError(f"the data set in {folder} is damaged ({error}): {mend}") from error
    rows = read_classes(folder, len(tokens))
    of = np.array([row.get("split") for row in rows])
    if not set(of) <= set(SPLITS):
        raise damaged_classes(folder, f"it should give each task one of the splits {', '.join(SPLITS)}")
    return TextDataset(
        name=name, tokens=tokens, splits={split: np.flatnonzero(of == split) for split in SPLITS},
        class_names=tuple(row["name"] for row in rows), words=tuple(word for word, _ in listed),
        public_counts=np.array([count for _, count in listed], dtype=np.int64), summary=summary,
    )  # fmt: skip


def cut_into_tasks(
    texts: Iterable[tuple[str, Sequence[str]]], *, words: int, test: float, validation: float, public_text: str,
    versions: dict[str, str], called: str, facts: dict[str, Any] | None = None, also_public: Iterable[str] = (),
) -> RawTexts:  # fmt: skip
    """The first words of each text that has enough as a task; texts of fewer words are public.

    Tasks are dealt at random, always the same way: a share of them for the test, then one of the rest for validation,
    each rounded up (Li et al. 2020, Appendix C).

    Args:
        texts: names and words, in an order that does not depend on the machine.
        words: of a task.
        test: share of the tasks.
        validation: share of what remains.
        public_text: what the texts of fewer words are, for people.
        versions: of the libraries whose version can change a word.
        called: the data set, for the message.
        facts: what else summary.json is to say of it.
        also_public: further words of the public text.

    Raises:
        BenchError: too few tasks for the three splits.
    """
    tasks, public = list[tuple[str, tuple[str, ...]]](), Counter(also_public)
    for name, found in texts:
        if len(found) >= words:
            tasks.append((name, tuple(found[:words])))
        else:
            public.update(found)
    tested = math.ceil(test * len(tasks))
    validated = math.ceil(validation * (len(tasks) - tested))
    trained = len(tasks) - tested - validated
    if min(tested, validated, trained) < 1:
        raise BenchError(
            f"{called} has {len(tasks)} texts of at least {words} words: training, validation and test need one each, "
            "give it more texts"
        )
    splits = shuffled_splits(len(tasks), (trained, validated, tested))
    return RawTexts(
        tasks=tuple(tasks), splits=splits, public=public, public_text=public_text, versions=versions, facts=facts or {}
    )


def _table(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
