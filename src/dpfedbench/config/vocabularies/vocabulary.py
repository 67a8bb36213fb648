"""Vocabularies: choices of the words that a language model knows."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, Never

from dpfedbench.config.part import Part
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import np


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenText:
    """Text that a vocabulary may be chosen from.

    Attributes:
        public: number of occurrences of each word in the public text, int64 [words].
        private: the same in the clients' texts; None for a vocabulary that does not
            declare that it reads them.
    """

    public: np.ndarray
    private: np.ndarray | None


class Vocabulary(Part):
    """Base of the vocabularies. Everyone who receives the model receives its words.

    `private` declares that the vocabulary reads clients' words; only then it receives
    them. Such a vocabulary is a release without an event, and no finite epsilon is
    proven for its runs: `reason` states this in the ledger, and `notice` for readers.
    """

    package: ClassVar[str] = "dpfedbench.config.vocabularies"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = ""
    notice: ClassVar[str] = ""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda vocabulary, run: (
                not vocabulary.private and not run.validation.public
            ),
            "validation.public is false, but the validation tasks are a part of the"
            " public text that task.text.vocabulary is taken from: set it to true",
        ),
    )

    @property
    def unaccounted_releases(self) -> tuple[str, ...]:
        return (self.reason,) if self.private else ()

    def notices(self, run: Never) -> tuple[str, ...]:
        return (self.notice,) if self.notice else ()

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        """Return the indices, int64 [n], of at most `size` different words.

        Their order is the order of the model's words.
        """
        raise NotImplementedError


class Public(Vocabulary):
    """The most frequent words of the data set's public text, independent of clients."""

    kind: Literal["public"] = "public"

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        return _most_frequent(seen.public, size)


class Private(Vocabulary):
    """The most frequent words of the training tasks (Li et al. 2020, Appendix C), which
    can include a word of a single client.

    As published: a release without an event.
    """

    kind: Literal["private"] = "private"
    private = True
    reason = "the model's vocabulary was taken from the clients' words"
    notice = (
        "the vocabulary is taken from the clients' words, which no event of the ledger"
        " covers: no finite epsilon is proven"
    )

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        assert seen.private is not None
        return _most_frequent(seen.private, size)


def _most_frequent(counts: np.ndarray, size: int) -> np.ndarray:
    """Return the indices of the largest counts above zero, in descending order.

    Words with equal counts are in alphabetical order.
    """
    frequent = np.argsort(-counts, kind="stable")[:size]
    return frequent[counts[frequent] > 0]
