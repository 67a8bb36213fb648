"""Texts as tasks of equally many words: what a reader hands over, and how it lies on disk.

A task is one author's (a role, an article, a module). Its words are the author's own; a text of fewer words is nobody's
task. Those texts and the validation tasks, which runs take for public, are the data set's *public text*: a vocabulary
may be taken from it freely, and from anything else only as a release (`settings.text`).

It lies in the same three files as images, and one more: images.npy (int32 [tasks, words], places in words.csv),
classes.csv (a task a line), summary.json, and words.csv, all words in alphabetical order with their count in the
public text.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dpfedbench.data.images import SPLITS, mend, open_files, read_splits, shuffled_splits, write_files
from dpfedbench.data.sources import held_files
from dpfedbench.errors import BenchError
from dpfedbench.files import check_file, read_json, reading, sha256
from dpfedbench.lazy import np

KIND = "texts"

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|[^\sa-z0-9]")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; numbers and punctuation marks are words of their own."""
    return _WORD.findall(text.lower().replace("’", "'"))


def words_in(path: Path) -> Iterator[str]:
    """The words of a text file in UTF-8, as `words_of` finds them; read as they are asked for.

    No word has a space in it, so that pieces which end at one have the words of the whole.

    Raises:
        BenchError: it cannot be read, or what was read so far is no text.
    """
    decoder, rest, done = codecs.getincrementaldecoder("utf-8-sig")(), "", 0
    with reading(path):
        check_file(path)
        handle = open(path, "rb")  # noqa: SIM115 (closed below)
    with handle:
        more = True
        while more:
            with reading(path):
                content = handle.read(_PIECE)
            more = bool(content)
            try:
                rest += decoder.decode(content, final=not more)
            except UnicodeDecodeError as error:
                place = done - (len(error.object) - len(content)) + error.start
                raise BenchError(f"{path} is not UTF-8 ({error.reason} at byte {place}): convert it") from error
            done += len(content)
            if "\0" in rest:
                raise BenchError(f"{path} is no text, it holds a NUL: take it away")
            whole, rest = _at_last_space(rest) if more else (rest, "")
            if len(rest) > _STRETCH:
                raise BenchError(f"{path} is no text, it has {len(rest):,} letters without a space: take it away")
            yield from words_of(whole)


_PIECE, _STRETCH = 1 << 20, 1 << 24


def _at_last_space(text: str) -> tuple[str, str]:
    if not text or text[-1].isspace():
        return text, ""
    pieces = text.rsplit(None, 1)
    return (pieces[0], pieces[1]) if len(pieces) > 1 else ("", text)


def decoded(content: bytes, called: str) -> str:
    """A text file's content.

    Raises:
        BenchError: it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BenchError(f"{called} is not UTF-8 ({error.reason} at byte {error.start}): convert it") from error


def text_files(path: Path, *, largest: int, total: int = 1 << 30) -> Iterator[tuple[str, bytes]]:
    """Names, without their ending, and contents of the files *.txt of a folder or archive; not in order.

    Args:
        path: where they are.
        largest, total: bytes that one file, and all of them, can have at most.

    Raises:
        BenchError: the archive is damaged, or they have more.
    """
    try:
        for name, read in held_files(path, largest=largest, total=total).items():
            if name.endswith(".txt"):
                content = read()
                total -= len(content)
                if total < 0:
                    raise ValueError("its texts have more bytes than are possible")
                yield PurePosixPath(name).stem, content
    except ValueError as error:
        raise BenchError(f"{path} cannot be read ({error}): delete it and put an undamaged copy there") from error


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
        rows = zip(range(len(tokens)), (name for name, _ in self.tasks), self.splits, strict=True)
        counts = {
            "classes": len(tokens),
            "examples_per_class": tokens.shape[1],
            "split_classes": {split: self.splits.count(split) for split in SPLITS},
            "words": len(known),
            "public_text": f"{self.public_text}; and the validation tasks",
            "public_words": sum(count > 0 for count in public.values()),
        }
        write_files(
            folder, KIND, tokens, [("index", "name", "split"), *rows], facts | self.facts, counts, self.versions,
            words=[("word", "public"), *((word, public[word]) for word in known)],
        )  # fmt: skip


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
    summary, tokens = open_files(folder, KIND, ("classes", "examples_per_class"))
    path = folder / "words.csv"
    try:
        if sha256(path) != summary.get("words_sha256"):
            raise ValueError("it is not what its summary says")
        with open(path, newline="", encoding="utf-8") as handle:
            listed = [(row["word"], int(row["public"])) for row in csv.DictReader(handle)]
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: {mend(folder)}") from error
    except (ValueError, OSError, KeyError) as error:
        raise BenchError(f"{path} is damaged ({error}): {mend(folder)}") from error
    splits, names = read_splits(folder, len(tokens))
    return TextDataset(
        name=summary["name"], tokens=tokens, splits=splits, class_names=names, words=tuple(word for word, _ in listed),
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
            f"{called} has {len(tasks)} texts of at least {words} words: training, validation and test need one each, "
            "give it more texts"
        )
    splits = shuffled_splits(len(tasks), (trained, validated, tested))
    return RawTexts(
        tasks=tuple(tasks), splits=splits, public=public, public_text=public_text, versions=versions, facts=facts or {}
    )
