"""Texts: sources, words, tasks, clients, vocabularies and records."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import pytest

from dpfedbench.config.text import Text
from dpfedbench.config.vocabularies.vocabulary import Private, Vocabulary
from dpfedbench.data import docstrings, shakespeare, text_folder
from dpfedbench.data.sources import local_folder
from dpfedbench.data.text_tasks import (
    KnownText,
    TextPartition,
    TextTasks,
    make_text_partition,
)
from dpfedbench.data.tokens import (
    RawTexts,
    cut_into_tasks,
    is_text,
    load_texts,
    words_of,
)
from dpfedbench.data.wiki import read_wiki

from .conftest import refusal, split_counts, write_files, write_tar, write_zip
from .text import SECRET, raw_texts, tiny_texts

# Sources: plays, articles, documentation strings and folders

PLAY = """A PLAY

by Nobody

ACT I.

SCENE I. A place.

[Enter HAM.]

Ham.
Who's there?
Nay, answer me.

[Exit.]

A line after a direction is Ham's.

FIRST WITCH
Hail! [Aside] Hail.

Scene II. Another place.

Nobody says this.

LADY MACBETH. \n  Out, out (_to the spot_) I say.
"""
SPEECH = b"word other " * 400


def test_play_is_split_into_roles():
    roles = {name: " ".join(words) for name, words in shakespeare.roles(PLAY).items()}
    assert roles == {
        "HAM": "who's there ? nay , answer me . a line after a direction is ham's .",
        "FIRST WITCH": "hail ! hail .",
        "LADY MACBETH": "out , out i say .",
    }


def test_plays_are_read_from_a_zip_and_a_folder_of_roles(tmp_path):
    """The second form is LEAF's: one file a role."""
    play = b"\n\n".join(b"R%c.\n%s" % (letter, SPEECH) for letter in b"ABCDEF")
    write_zip(tmp_path / "plays.zip", {f"plays/play{n}.txt": play for n in range(2)})
    assert len(shakespeare.read_shakespeare(tmp_path, tmp_path).tasks) == 12
    names = [f"PLAY_ROLE{role}" for role in range(10)]
    files = {f"by_play_and_character/{name}.txt": SPEECH for name in names}
    write_files(tmp_path / "leaf" / "shakespeare", files)
    leaf = shakespeare.read_shakespeare(tmp_path / "leaf", tmp_path)
    assert [name for name, _ in leaf.tasks] == names


def test_real_plays_have_about_as_many_roles_as_published():
    folder = local_folder(None)
    if folder is None or not (folder / "shakespeare").is_dir():
        pytest.skip("the plays are not here: set DPFEDBENCH_DATA")
    assert 320 <= len(shakespeare.read_shakespeare(folder, folder).tasks) <= 345


def test_articles_are_read_from_a_tar(tmp_path):
    """A short article is public text."""
    articles = {f"articles/Title {n}.txt": b"w%d " % n * 1700 for n in range(10)}
    articles["articles/Short.txt"] = b"few words"
    write_tar(tmp_path / "wiki-3029.tar.gz", articles)
    raw = read_wiki(tmp_path, tmp_path)
    assert len(raw.tasks) == 10
    assert raw.public["few"] == 1


def test_modules_that_repeat_another_are_left_out(monkeypatch):
    monkeypatch.setattr(docstrings, "WORDS", 20)

    a, b, c, d = ([f"{letter}{index}" for index in range(40)] for letter in "abcd")
    texts = {
        "first": a,
        "copy": a[:20] + b[:20],
        "different": c,
        "little shared": a[:10] + d,
        "short copy": a[:10],
    }
    names = [name for name, _ in docstrings._apart(iter(texts.items()))]
    assert names == ["short copy", "first", "different", "little shared"]


def test_text_folder_is_split_into_tasks_and_has_text_files_alone(tmp_path):
    texts = {f"author {n}.txt": b"w%d " % n * 30 for n in range(10)}
    options = {"folder": str(write_files(tmp_path, texts)), "words": 20, "test": 0.2}
    assert split_counts(text_folder.read(None, tmp_path, **options)) == [7, 1, 2]
    write_files(tmp_path, {"a.txt": b"words and \0 more"})
    message = refusal(text_folder.read, None, tmp_path, **options)
    assert "a.txt is not a text file" in message


# Words, tasks and files


def test_words_are_lower_case_and_punctuation_is_a_word():
    words = words_of("Who's there? -- 'Tis 12 o’clock.")
    assert " ".join(words) == "who's there ? - - ' tis 12 o'clock ."


def test_tasks_are_split_in_the_published_numbers():
    texts = [(str(number), ["a"]) for number in range(3028)]
    options = {"words": 1, "validation": 0.1, "called": "x"}
    shakespeare_tasks = cut_into_tasks(texts[:345], test=0.1, **options)
    assert split_counts(shakespeare_tasks) == [279, 31, 35]
    wiki_tasks = cut_into_tasks(texts, test=0.2, **options)
    assert split_counts(wiki_tasks) == [2179, 243, 606]


def test_task_is_the_first_words_of_its_text():
    """The remaining words of a text are not public."""
    texts = [(name, [f"{name}-{index}" for index in range(5)]) for name in "abcdef"]
    shares = {"words": 3, "test": 0.1, "validation": 0.1, "called": "plays"}
    raw = cut_into_tasks(texts, **shares)
    assert raw.tasks == tuple((name, tuple(words[:3])) for name, words in texts)
    assert not raw.public


def test_texts_are_read_back_with_the_counts_of_their_public_text(tmp_path):
    """Public are short texts and validation tasks alone."""
    dataset = tiny_texts(tmp_path)
    words = np.array(dataset.words)[dataset.tokens].tolist()
    tasks = zip(dataset.class_names, map(tuple, words), strict=True)
    assert tuple(tasks) == raw_texts().tasks
    assert dataset.tokens.dtype == np.int32
    sizes = {split: len(tasks) for split, tasks in dataset.splits.items()}
    assert sizes == {"train": 9, "validation": 1, "test": 2}
    assert is_text(tmp_path)
    validation = dataset.tokens[dataset.splits["validation"]].ravel()
    counts = np.bincount(validation, minlength=len(dataset.words))
    for word, in_short_text in (("a", 2), ("c", 1), (SECRET, 0)):
        index = dataset.words.index(word)
        assert dataset.public_counts[index] == counts[index] + in_short_text


# Clients, vocabularies and records

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
    words = np.argsort(-texts.public_counts, kind="stable")[:4].tolist()
    numbers = {word: number for number, word in enumerate(words, start=1)}
    expected = np.reshape([numbers.get(word, 0) for word in texts.tokens[3]], (8, 5))
    assert np.array_equal(known.tasks(np.array([3]))[0], expected)
    held = TextTasks(tmp_path, tmp_path / "clients", TEXT, support=5, query=3)
    batch = held.gather(np.array([2, 0]))
    assert (batch.support_x == batch.support_y).all()
    records = np.concatenate([batch.support_x, batch.query_x], axis=1)
    tasks = TextPartition.load(tmp_path / "clients").tasks
    assert np.array_equal(records, known.tasks(tasks[[2, 0]]))


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


def test_vocabularies_count_no_word_of_a_test_task(tmp_path):
    """Each text has a word of its own. The private vocabulary is of the training tasks,
    the public one of the public text, to which the validation task belongs.
    """
    tasks = (("a", ("train",) * 8), ("b", ("test",) * 8), ("c", ("validated",) * 8))
    raw = RawTexts(
        tasks=tasks,
        splits=("train", "test", "validation"),
        public={"public": 3},
        versions={},
    )
    raw.save(tmp_path, {"name": "tiny", "recorded_sha256": None})
    texts = load_texts(tmp_path)
    text = TEXT.replace(words=1, record=4)
    assert KnownText(texts, text.replace(vocabulary=Private())).words == ("train",)
    assert KnownText(texts, text.replace(words=2)).words == ("validated", "public")
    message = refusal(KnownText, texts, text.replace(words=3))
    assert "has 2 different words" in message
    message = refusal(KnownText, texts, text.replace(words=2, vocabulary=Private()))
    assert "has 1 different words" in message


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
    text = TEXT.model_copy(update={"vocabulary": PeekingVocabulary()})
    with pytest.raises(TypeError):
        KnownText(texts, text)
    text = TEXT.model_copy(update={"vocabulary": DeclaredVocabulary()})
    assert KnownText(texts, text).unaccounted_releases == ("it peeks",)


def test_public_vocabulary_does_not_depend_on_clients_words(texts):
    tokens = np.array(texts.tokens)
    tokens[texts.splits["train"]] = texts.words.index(SECRET)
    changed = dataclasses.replace(texts, tokens=tokens)
    assert (KnownText(texts, TEXT)._place == KnownText(changed, TEXT)._place).all()
