"""Texts: words, tasks and files."""

import numpy as np
import pytest

from dpfedbench.data.tokens import cut_into_tasks, is_text, words_of

from .conftest import split_counts
from .text import SECRET, raw_texts, tiny_texts


def test_words_are_lower_case_and_punctuation_is_a_word():
    words = words_of("Who's there? -- 'Tis 12 o’clock.")
    assert " ".join(words) == "who's there ? - - ' tis 12 o'clock ."


@pytest.mark.parametrize(
    ("tasks", "test", "expected"),
    [(345, 0.1, [279, 31, 35]), (3028, 0.2, [2179, 243, 606])],
)
def test_tasks_are_split_in_the_published_numbers(tasks, test, expected):
    texts = [(str(number), ["a"]) for number in range(tasks)]
    raw = cut_into_tasks(texts, words=1, test=test, validation=0.1, called="x")
    assert split_counts(raw) == expected


def test_task_is_the_first_words_of_its_text():
    """The remaining words of a text are not public."""
    texts = [
        (f"text {number}", [f"{number}-{index}" for index in range(5)])
        for number in range(6)
    ]
    shares = {"words": 3, "test": 0.1, "validation": 0.1, "called": "plays"}
    raw = cut_into_tasks(texts, **shares)
    assert raw.tasks == tuple((name, tuple(words[:3])) for name, words in texts)
    assert not raw.public


def test_texts_are_read_back(tmp_path):
    raw = raw_texts()
    dataset = tiny_texts(tmp_path)
    for index, (name, words) in enumerate(raw.tasks):
        row = [dataset.words[token] for token in dataset.tokens[index]]
        assert row == list(words)
        assert dataset.class_names[index] == name
    assert dataset.tokens.dtype == np.int32
    assert dataset.tokens.shape == (12, 40)
    sizes = {split: len(tasks) for split, tasks in dataset.splits.items()}
    assert sizes == {"train": 9, "validation": 1, "test": 2}
    assert is_text(tmp_path)


def test_public_text_is_short_texts_and_validation_tasks_alone(tmp_path):
    dataset = tiny_texts(tmp_path)
    validation = dataset.tokens[dataset.splits["validation"]].ravel()
    counts = np.bincount(validation, minlength=len(dataset.words))
    for letter, in_short_text in (("a", 2), ("c", 1)):
        word = dataset.words.index(letter)
        assert dataset.public_counts[word] == counts[word] + in_short_text
    assert dataset.public_counts[dataset.words.index(SECRET)] == 0
