"""Texts: words, tasks, and the files that they lie in."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.tokens import (
    cut_into_tasks,
    decoded,
    is_text,
    load_texts,
    words_of,
)
from dpfedbench.errors import BenchError
from tests.dpfedbench.data.text import SECRET, raw_texts, tiny_texts


def test_words_are_lower_case_and_punctuation_is_a_word() -> None:
    assert words_of("Who's there? -- 'Tis 12 o’clock.") == [
        "who's",
        "there",
        "?",
        "-",
        "-",
        "'",
        "tis",
        "12",
        "o'clock",
        ".",
    ]
    assert words_of("  \n") == []


def test_text_that_is_not_utf_8() -> None:
    assert decoded(b"\xef\xbb\xbfa", "x") == "a"  # a byte order mark is no letter
    with pytest.raises(
        BenchError, match=r"plays/x\.txt is not UTF-8 \(invalid start byte at byte 1\)"
    ):
        decoded(b"a\xff", "plays/x.txt")


@pytest.mark.parametrize(
    ("tasks", "test", "wanted"),
    [
        (345, 0.1, (279, 31, 35)),
        (3028, 0.2, (2179, 243, 606)),
        (1220, 0.1, (988, 110, 122)),
    ],
)
def test_the_published_numbers_of_tasks_are_rounded_up_shares(
    tasks: int, test: float, wanted: tuple[int, int, int]
) -> None:
    texts = [(str(number), ["a"]) for number in range(tasks)]
    raw = cut_into_tasks(texts, words=1, test=test, validation=0.1, called="x")
    assert (
        tuple(raw.splits.count(split) for split in ("train", "validation", "test"))
        == wanted
    )


def test_a_task_is_the_first_words_of_its_own_text() -> None:
    texts = [
        (f"text {number}", [f"{number}-{place}" for place in range(5)])
        for number in range(6)
    ]
    raw = cut_into_tasks(texts, words=3, test=0.1, validation=0.1, called="x")
    assert raw.tasks == tuple((name, tuple(words[:3])) for name, words in texts)
    assert not raw.public  # what a task leaves of its text is nobody's, and not public


def test_too_few_texts_for_three_splits() -> None:
    with pytest.raises(
        BenchError,
        match="plays has 2 texts of at least 3 words: training, validation and test",
    ):
        cut_into_tasks(
            [("a", list("xyz")), ("b", list("xyz")), ("c", list("xy"))],
            words=3,
            test=0.1,
            validation=0.1,
            called="plays",
        )


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    raw, found = raw_texts(), tiny_texts(tmp_path)
    for (name, words), index in zip(raw.tasks, range(12), strict=True):
        assert [found.words[token] for token in found.tokens[index]] == list(words)
        assert found.class_names[index] == name
    assert found.tokens.dtype == np.int32 and found.tokens.shape == (12, 40)
    assert {split: len(ids) for split, ids in found.splits.items()} == {
        "train": 9,
        "validation": 1,
        "test": 2,
    }
    assert is_text(tmp_path) and found.summary["public_words"] == 10


def test_the_public_text_is_short_texts_and_validation_tasks_alone(
    tmp_path: Path,
) -> None:
    found = tiny_texts(tmp_path)
    counts = np.bincount(
        found.tokens[found.splits["validation"]].ravel(), minlength=len(found.words)
    )
    for letter, extra in (("a", 2), ("c", 1)):
        place = found.words.index(letter)
        assert found.public_counts[place] == counts[place] + extra
    assert found.public_counts[found.words.index(SECRET)] == 0


def test_damage_is_found(tmp_path: Path) -> None:
    tiny_texts(tmp_path)
    with pytest.raises(
        BenchError, match=r"needs a data set|is split by record|is not|does not"
    ):
        load_dataset(tmp_path)
    text = (tmp_path / "words.csv").read_text()
    (tmp_path / "words.csv").write_text(text.replace("a,", "a,1", 1))
    with pytest.raises(
        BenchError, match=r"words\.csv is damaged \(it is not what its summary says"
    ):
        load_texts(tmp_path)
    (tmp_path / "words.csv").unlink()
    with pytest.raises(BenchError, match=r"words\.csv is missing"):
        load_texts(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"kind": "classes"}))
    with pytest.raises(BenchError, match="is of images, and this run needs texts"):
        load_texts(tmp_path)
