"""Clients of texts: partitions, vocabularies and records."""

from typing import ClassVar, Literal

import numpy as np
import pytest

from dpfedbench.config.text import Text
from dpfedbench.config.vocabularies.vocabulary import Private, Vocabulary
from dpfedbench.data.text_tasks import (
    KnownText,
    TextPartition,
    TextTasks,
    make_text_partition,
)

from .conftest import refusal
from .text import SECRET, tiny_texts

TEXT = Text(words=4, record=5)


@pytest.fixture
def texts(tmp_path):
    """Write tiny texts to `tmp_path`, and seven clients to `clients`."""
    data = tiny_texts(tmp_path)
    partition = make_text_partition(data, clients=7, kind="disjoint", seed=1)
    partition.save(tmp_path / "clients")
    return data


def test_text_partition_gives_each_client_a_training_task_of_its_own(texts, tmp_path):
    tasks = TextPartition.load(tmp_path / "clients").tasks
    assert len(set(tasks)) == 7
    assert set(tasks) <= set(texts.splits["train"])
    too_many = {"clients": 10, "kind": "disjoint", "seed": 1}
    assert "9 training tasks" in refusal(make_text_partition, texts, **too_many)


def test_records_are_consecutive_words_and_unknown_words_are_zero(texts, tmp_path):
    known = KnownText(texts, TEXT)
    words = sorted(
        range(len(texts.words)), key=lambda word: (-texts.public_counts[word], word)
    )[:4]
    numbers = {word: number for number, word in enumerate(words, start=1)}
    expected = np.reshape([numbers.get(word, 0) for word in texts.tokens[3]], (8, 5))
    assert known.tasks(np.array([3]))[0].tolist() == expected.tolist()
    held = TextTasks(tmp_path, tmp_path / "clients", TEXT, support=5, query=3)
    batch = held.gather(np.array([2, 0]))
    assert (batch.support_x == batch.support_y).all()
    records = np.concatenate([batch.support_x, batch.query_x], axis=1)
    tasks = TextPartition.load(tmp_path / "clients").tasks
    assert records[1].tolist() == known.tasks(tasks[:1])[0].tolist()


def test_private_vocabulary_has_clients_words_and_is_unaccounted(texts):
    text = TEXT.replace(words=10)
    public = KnownText(texts, text)
    private = KnownText(texts, text.replace(vocabulary=Private()))
    secret = texts.words.index(SECRET)
    owner = np.flatnonzero((texts.tokens == secret).any(axis=1))
    assert not (public.tasks(owner)[0][:4] > 0).any()
    assert (private.tasks(owner)[0][:4] > 0).all()
    assert public.unaccounted_releases == ()
    assert "vocabulary" in private.unaccounted_releases[0]


class PeekingVocabulary(Vocabulary):
    """Vocabulary that reads clients' words and does not declare it."""

    kind: Literal["peeking"] = "peeking"

    def choose(self, text, size):
        return np.argsort(-(text.public + text.private))[:size]


class DeclaredVocabulary(PeekingVocabulary):
    kind: Literal["declared"] = "declared"
    private: ClassVar[bool] = True
    reason: ClassVar[str] = "it peeks"


def test_vocabulary_receives_clients_words_only_if_it_declares_it(texts):
    text = Text.model_construct(**dict(TEXT) | {"vocabulary": PeekingVocabulary()})
    with pytest.raises(TypeError):
        KnownText(texts, text)
    text = Text.model_construct(**dict(TEXT) | {"vocabulary": DeclaredVocabulary()})
    assert KnownText(texts, text).unaccounted_releases == ("it peeks",)


def test_public_vocabulary_does_not_depend_on_clients_words(texts):
    before = KnownText(texts, TEXT)._place.copy()
    tokens = np.array(texts.tokens)
    tokens[texts.splits["train"]] = texts.words.index(SECRET)
    object.__setattr__(texts, "tokens", tokens)
    assert (KnownText(texts, TEXT)._place == before).all()
