"""Texts as tasks of equally many words: what a reader hands over, and how it lies on
disk.

A task is one author's (a role, an article, a module). Its words are the author's own; a
text of fewer words is nobody's task. Those texts and the validation tasks, which runs
take for public, are the data set's *public text*: a vocabulary may be taken from it
freely, and from anything else only as a release (`settings.text`).

It lies in the same three files as images, and one more: images.npy (int32 [tasks,
words], places in words.csv), classes.csv (a task a line), summary.json, and words.csv,
all words in alphabetical order with their count in the public text.
"""

from __future__ import annotations

import codecs
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from dpfedbench.data.images import (
    SPLITS,
    Content,
    Raw,
    check_splits,
    class_table,
    open_files,
    read_splits,
    read_table,
    shuffled_splits,
    whole,
)
from dpfedbench.data.sources import Copy
from dpfedbench.errors import BenchError
from dpfedbench.files import check_file, read_json, reading, sha256
from dpfedbench.lazy import np

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+|[^\sa-z0-9]")
_PIECE = 1 << 20
"""Bytes of a file that are read at once."""
_LONGEST = 1 << 24
"""Letters without a space between them that a text can have."""


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; numbers and punctuation marks are words of
    their own.
    """
    return _WORD.findall(text.lower().replace("’", "'"))


def words_in(path: Path) -> Iterator[str]:
    """The words of a text file in UTF-8, as `words_of` has them; it is read no further
    than they are asked for.

    No word has a space in it, so pieces that end at a space have the words of the whole
    file.

    Raises:
        BenchError: it cannot be read, or what was read so far is no text.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    done = 0
    with reading(path):
        check_file(path)
        handle = open(path, "rb")  # noqa: SIM115
    with handle:
        content = b"more"
        while content:
            with reading(path):
                content = handle.read(_PIECE)
            try:
                rest += decoder.decode(content, final=not content)
            except UnicodeDecodeError as error:
                offset = done - (len(error.object) - len(content)) + error.start
                raise _no_utf_8(path, error, offset) from error
            done += len(content)
            if "\0" in rest:
                raise BenchError(f"{path} is no text, it holds a NUL: take it away")
            # After the last space a word may not be at its end yet.
            tail = (
                ""
                if not content or not rest or rest[-1].isspace()
                else rest.rsplit(None, 1)[-1]
            )
            if len(tail) > _LONGEST:
                raise BenchError(
                    f"{path} is no text, it has {len(tail):,} letters without a space:"
                    " take it away"
                )
            yield from words_of(rest[: len(rest) - len(tail)])
            rest = tail


def decoded(content: bytes, called: str) -> str:
    """A text file's content.

    Raises:
        BenchError: it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_utf_8(called, error, error.start) from error


def _no_utf_8(called: object, error: UnicodeDecodeError, place: int) -> BenchError:
    return BenchError(
        f"{called} is not UTF-8 ({error.reason} at byte {place}): convert it"
    )


def texts_of(copy: Copy) -> list[tuple[str, str]]:
    """Names, without their ending, and contents of the files *.txt of a folder or
    archive, by name.

    Raises:
        BenchError: the archive is damaged or too large, or a file is not UTF-8.
    """
    texts = sorted(
        (PurePosixPath(name).stem, read())
        for name, read in copy.files.items()
        if name.endswith(".txt")
    )
    return [
        (name, decoded(content, f"{copy.path}: {name}.txt")) for name, content in texts
    ]


@dataclass(frozen=True, kw_only=True)
class RawTexts(Raw):
    """Texts by task, as a reader hands them over.

    Attributes:
        tasks: names and first words of the tasks, equally many of each.
        splits: one of "train", "validation", "test" per task.
        public: words of the public text besides the validation tasks', with counts.
        public_text: what that text is, for people.
    """

    kind: ClassVar[str] = "texts"

    tasks: tuple[tuple[str, tuple[str, ...]], ...]
    splits: tuple[str, ...]
    public: Mapping[str, int]
    public_text: str

    def __post_init__(self) -> None:
        """Check lengths and names; a fault here is ours, not the user's."""
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
            "public_text": f"{self.public_text}; and the validation tasks",
            "public_words": sum(count > 0 for count in public.values()),
        }
        tables = {
            "classes": class_table([name for name, _ in self.tasks], split=self.splits),
            "words": [("word", "public"), *((word, public[word]) for word in known)],
        }
        return tokens, tables, counts


@dataclass(frozen=True, kw_only=True)
class TextDataset:
    """A data set of texts as the rest of the library sees it.

    Attributes:
        name: the registry's name.
        tokens: int32 [tasks, words], places in `words`; memory-mapped, read-only.
        splits: task indices (int64, ascending) of "train", "validation" and "test";
            disjoint.
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
    return isinstance(summary, Mapping) and summary.get("kind") == RawTexts.kind


def load_texts(folder: Path | str) -> TextDataset:
    """Open a prepared data set of texts, checking that it is whole.

    Raises:
        BenchError: a file is missing, or is not what was written there; or it is a data
            set of images.
    """
    folder = Path(folder)
    summary, tokens = open_files(
        folder, RawTexts.kind, ("classes", "examples_per_class")
    )
    with whole(folder / "words.csv") as path:
        if sha256(path) != summary.get("words_sha256"):
            raise ValueError("it is not what its summary says")
        rows = read_table(path)
        words = [row["word"] for row in rows]
        counts = [int(row["public"]) for row in rows]
    splits, names = read_splits(folder, len(tokens))
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
    unit: str = "texts",
    versions: dict[str, str] | None = None,
    facts: dict[str, Any] | None = None,
) -> RawTexts:
    """The first words of each text that has enough as a task; texts of fewer words are
    public.

    Tasks are dealt at random, always the same way: a share of them for the test, then
    one of the rest for validation, each rounded up (Li et al. 2020, Appendix C).

    Args:
        texts: names and words, in an order that does not depend on the machine.
        words: of a task.
        test: share of the tasks.
        validation: share of what remains.
        called: the data set, for the message.
        unit: what the texts are (roles, articles, ...), for people.
        versions: of the libraries whose version can change a word.
        facts: what else summary.json is to say of it.

    Raises:
        BenchError: too few tasks for the three splits.
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
            " validation and test need one each, give it more texts"
        )
    return RawTexts(
        tasks=tuple(tasks),
        splits=shuffled_splits(len(tasks), (trained, validated, tested)),
        public=public,
        public_text=f"the {unit} of fewer than {words} words, which are no task",
        versions=versions or {},
        facts=facts or {},
    )
