"""Tasks of clients and tests on texts, as records in the vocabulary of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpfedbench.config.text import Text
from dpfedbench.config.vocabularies.vocabulary import SeenText
from dpfedbench.data.clients_folder import (
    ClientsFolder,
    check_made_for,
    of_training,
)
from dpfedbench.data.partition import TaskBatch
from dpfedbench.data.tokens import TextDataset, load_texts
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpsum.randomness import stream


@dataclass(frozen=True, kw_only=True)
class TextPartition(ClientsFolder):
    """One task per client.

    Attributes:
        tasks: int32 [clients], indices into the data set's tasks, without repetition.
        summary: dataset, kind, seed and counts.
    """

    arrays: ClassVar[tuple[str, ...]] = ("tasks",)

    tasks: np.ndarray


def make_text_partition(
    dataset: TextDataset, *, clients: int, kind: str, seed: int
) -> TextPartition:
    """Assign a random training task to each client.

    The random stream is (seed, "partition").

    Raises:
        BenchError: there are more clients than training tasks.
    """
    pool = dataset.splits["train"]
    if not 1 <= clients <= len(pool):
        raise BenchError(
            f"clients.count is {clients}, but {dataset.name} has {len(pool)} training"
            f" tasks, one for each client: set it to {len(pool)} or less"
        )
    tasks = pool[stream(seed, "partition").permutation(len(pool))[:clients]].astype(
        np.int32
    )
    summary = of_training(dataset, kind=kind, seed=seed, clients=clients)
    return TextPartition(tasks=tasks, summary=summary)


class KnownText:
    """Data set of texts in the vocabulary of a run.

    A record is `text.record` consecutive words, int64: 0 for an unknown word, else its
    index in the vocabulary plus one. The labels of a record are its own words: a model
    predicts each word from the words before it in the record.

    Only a vocabulary that is declared to read clients' words receives the word counts
    of the training tasks.

    Args:
        dataset: the data set.
        text: the run's task.

    Attributes:
        words: words of the vocabulary; records encode word i as i + 1.
        unaccounted_releases: reason why the vocabulary is itself a release that the
            account does not cover; empty if it is not.

    Raises:
        BenchError: a record is longer than a task, or there are fewer words than the
            vocabulary needs.
    """

    def __init__(self, dataset: TextDataset, text: Text) -> None:
        self.dataset = dataset
        self.text = text
        vocabulary = text.vocabulary
        words = len(dataset.words)
        self.name = dataset.name
        self.records_per_task = dataset.tokens.shape[1] // text.record
        if not self.records_per_task:
            raise BenchError(
                f"task.text.record is {text.record}, but a task of {dataset.name} has"
                f" {dataset.tokens.shape[1]} words: lower it"
            )
        counts = None
        if vocabulary.private:
            counts = np.bincount(
                dataset.tokens[dataset.splits["train"]].ravel(), minlength=words
            )
        chosen = vocabulary.choose(
            SeenText(public=dataset.public_counts.copy(), private=counts), text.words
        )
        if len(chosen) < text.words:
            raise BenchError(
                f"task.text.words is {text.words}, but the text that the vocabulary"
                f" {vocabulary.kind} is taken from ({dataset.name}) has {len(chosen)}"
                " different words: lower it to that"
            )
        self.words = tuple(dataset.words[index] for index in chosen)
        self._place = np.zeros(words, np.int64)
        self._place[chosen] = np.arange(1, len(chosen) + 1)
        self.unaccounted_releases = vocabulary.unaccounted_releases

    @property
    def image_shape(self) -> tuple[int]:
        """Shape of a record."""
        return (self.text.record,)

    @property
    def summary(self) -> dict[str, Any]:
        """Summary of the data set."""
        return self.dataset.summary

    def tasks(self, ids: np.ndarray) -> np.ndarray:
        """Return all records of tasks, int64 [n, records, words of a record]."""
        used = self.records_per_task * self.text.record
        return self._place[np.asarray(self.dataset.tokens[ids])[:, :used]].reshape(
            len(ids), -1, self.text.record
        )


class TextTasks:
    """Clients that are tasks of texts.

    Args:
        data_dir, clients_dir: folders of a prepared data set of texts and of a
            partition of it.
        text: the run's task.
        support, query: numbers of records that a client uses, one after the other.

    Raises:
        BenchError: data are missing or damaged, or the settings do not fit them.
    """

    def __init__(
        self, data_dir: Path, clients_dir: Path, text: Text, *, support: int, query: int
    ) -> None:
        texts = load_texts(data_dir)
        self._partition = TextPartition.load(clients_dir)
        check_made_for(texts.name, texts.summary, self._partition.summary)
        self.dataset = KnownText(texts, text)
        self.unaccounted_releases = self.dataset.unaccounted_releases
        self._sizes = support, query
        if support + query > self.dataset.records_per_task:
            raise BenchError(
                f"clients.support_per_class and query_per_class are {support} and"
                f" {query} records, but a task of {texts.name} has"
                f" {self.dataset.records_per_task} of {text.record} words: lower them"
            )

    def gather(self, ids: np.ndarray) -> TaskBatch:
        """Return the records of the clients with these ids."""
        support, query = self._sizes
        records = self.dataset.tasks(self._partition.tasks[np.asarray(ids)])
        first = records[:, :support]
        then = records[:, support : support + query]
        return TaskBatch(support_x=first, support_y=first, query_x=then, query_y=then)
