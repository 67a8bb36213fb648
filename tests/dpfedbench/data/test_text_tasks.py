"""Clients of texts: partitions, vocabularies and records."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest

from dpfedbench.data.text_tasks import (
    KnownText,
    TextPartition,
    TextTasks,
    make_text_partition,
)
from dpfedbench.errors import BenchError
from dpfedbench.settings.text import Text
from dpfedbench.settings.vocabularies.vocabulary import Private, SeenText, Vocabulary
from tests.dpfedbench.data.text import SECRET, tiny_texts

TEXT = Text(words=4, record=5)


def test_each_client_is_a_training_task_of_its_own(tmp_path: Path) -> None:
    data = tiny_texts(tmp_path)
    found = make_text_partition(data, clients=7, kind="disjoint", seed=1)
    assert len(set(found.tasks)) == 7 and set(found.tasks) <= set(data.splits["train"])
    found.save(tmp_path / "clients")
    assert (
        TextPartition.load(tmp_path / "clients").tasks.tolist() == found.tasks.tolist()
    )
    with pytest.raises(
        BenchError, match=r"clients\.count is 10, but tiny has 9 training tasks"
    ):
        make_text_partition(data, clients=10, kind="disjoint", seed=1)
    with pytest.raises(
        BenchError,
        match=r"clients\.partition is shared, but a task of tiny is one client's",
    ):
        make_text_partition(data, clients=2, kind="shared", seed=1)


def test_records_are_words_in_a_row_and_unknown_words_are_zero(tmp_path: Path) -> None:
    data = tiny_texts(tmp_path)
    known = KnownText(data, TEXT)
    order = sorted(
        range(len(data.words)), key=lambda place: (-data.public_counts[place], place)
    )[:4]
    place = {data.words[word]: number for number, word in enumerate(order, start=1)}
    wanted = [place.get(data.words[token], 0) for token in data.tokens[3]]
    assert known.tasks(np.array([3]))[0].tolist() == np.reshape(wanted, (8, 5)).tolist()
    assert (
        known.records_per_task == 8
        and known.image_shape == (5,)
        and known.unaccounted == ()
    )
    make_text_partition(data, clients=7, kind="disjoint", seed=1).save(
        tmp_path / "clients"
    )
    held = TextTasks(tmp_path, tmp_path / "clients", TEXT, support=5, query=3)
    batch = held.gather(np.array([2, 0]))
    assert batch.support_x.shape == (2, 5, 5) and batch.query_x.shape == (2, 3, 5)
    assert (batch.support_x == batch.support_y).all()
    both = np.concatenate([batch.support_x, batch.query_x], axis=1)
    ids = TextPartition.load(tmp_path / "clients").tasks
    assert both[1].tolist() == known.tasks(ids[:1])[0].tolist()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    data = tiny_texts(tmp_path)
    with pytest.raises(
        BenchError, match=r"task\.text\.record is 41, but a task of tiny has 40 words"
    ):
        KnownText(data, Text(words=4, record=41))
    with pytest.raises(
        BenchError, match=r"task\.text\.words is 11, but .* has 10 different words"
    ):
        KnownText(data, Text(words=11, record=5))
    make_text_partition(data, clients=7, kind="disjoint", seed=1).save(
        tmp_path / "clients"
    )
    with pytest.raises(
        BenchError, match="are 6 and 3 records, but a task of tiny has 8"
    ):
        TextTasks(tmp_path, tmp_path / "clients", TEXT, support=6, query=3)


def test_a_private_vocabulary_knows_a_clients_word_and_says_so(tmp_path: Path) -> None:
    data = tiny_texts(tmp_path)
    place = data.words.index(SECRET)
    text = TEXT.replace(words=10)
    public, private = (
        KnownText(data, text),
        KnownText(data, text.replace(vocabulary=Private())),
    )
    owner = np.flatnonzero((data.tokens == place).any(axis=1))
    assert not (public.tasks(owner)[0][:4] > 0).any()
    assert (private.tasks(owner)[0][:4] > 0).all()
    assert public.unaccounted == () and "vocabulary" in private.unaccounted[0]


class Peeking(Vocabulary):
    """Reads clients' words and does not declare it."""

    kind: Literal["peeking"] = "peeking"

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        return np.argsort(-(seen.public + seen.private))[:size]  # type: ignore[operator]


class Declared(Peeking):
    kind: Literal["declared"] = "declared"  # type: ignore[assignment]
    private: ClassVar[bool] = True
    reason: ClassVar[str] = "it peeks"


def test_clients_words_exist_only_for_a_vocabulary_that_declares_it(
    tmp_path: Path,
) -> None:
    data = tiny_texts(tmp_path)
    text = Text.model_construct(**dict(TEXT) | {"vocabulary": Peeking()})
    with pytest.raises(TypeError):
        KnownText(data, text)
    text = Text.model_construct(**dict(TEXT) | {"vocabulary": Declared()})
    assert KnownText(data, text).unaccounted == ("it peeks",)


def test_a_public_vocabulary_does_not_move_with_clients_words(tmp_path: Path) -> None:
    data = tiny_texts(tmp_path)
    before = KnownText(data, TEXT)._place.copy()
    tokens = np.array(data.tokens)
    tokens[data.splits["train"]] = data.words.index(SECRET)
    object.__setattr__(data, "tokens", tokens)
    assert (KnownText(data, TEXT)._place == before).all()
