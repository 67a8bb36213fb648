"""Vocabularies: the words that a language model knows, chosen from what it may see."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.settings.part import Part
from dpfedbench.settings.sections import HasSections


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenText:
    """Text that a vocabulary may be made of.

    Attributes:
        public: int64 [words], how often each word is in the public text.
        private: the same in the clients' own words; None for a vocabulary that is not
            declared to read them.
    """

    public: np.ndarray
    private: np.ndarray | None


class Vocabulary(Part):
    """Base of the ways to choose the words that a model knows. Everyone who gets the
    model gets its words.

    `private`: whether it reads clients' words. Then it is a release without an event,
    and no finite epsilon is proven for a run; `reason` says so for the ledger, and `notice`
    for people. Clients' words exist for it only if it says so.
    """

    package: ClassVar[str] = "dpfedbench.settings.vocabularies"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = ""
    notice: ClassVar[str] = ""

    def check(self, run: HasSections) -> None:
        if not self.private and not run.validation.public:
            raise BenchError(
                "validation.public is false, but the validation tasks are a part of the"
                " public text that task.text.vocabulary is taken from: set it to true"
            )

    @property
    def unaccounted(self) -> tuple[str, ...]:
        return (self.reason,) if self.private else ()

    def notices(self, run: HasSections) -> tuple[str, ...]:
        return (self.notice,) if self.notice else ()

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        """Places int64 [n] of at most `size` different words; a model's first word is
        the first of them.
        """
        raise NotImplementedError


class Public(Vocabulary):
    """The most frequent words of the data set's public text: nothing of a client is in
    it.
    """

    kind: Literal["public"] = "public"

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        return _most_frequent(seen.public, size)


class Private(Vocabulary):
    """The most frequent words of the training tasks (Li et al. 2020, Appendix C): a
    word of one client may be in it.

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
    """The places of the largest counts above zero, the larger first, then in
    alphabetical order.
    """
    frequent = np.argsort(-counts, kind="stable")[:size]
    return frequent[counts[frequent] > 0]
