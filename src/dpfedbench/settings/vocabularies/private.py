"""Words of the clients' own texts, as published: a release without an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.settings.sections import HasSections
from dpfedbench.settings.vocabularies.public import most_frequent
from dpfedbench.settings.vocabularies.vocabulary import SeenText, Vocabulary

if TYPE_CHECKING:
    import numpy as np


class Private(Vocabulary):
    """The most frequent words of the training tasks (Li et al. 2020, Appendix C): a word of one client may be in it."""

    kind: Literal["private"] = "private"
    private: ClassVar[bool] = True
    reason: ClassVar[str] = "the model's vocabulary was taken from the clients' words"
    notice: ClassVar[str] = (
        "the vocabulary is taken from the clients' words, which no event of the ledger covers: no finite epsilon holds"
    )

    def check(self, run: HasSections) -> None:
        """Nothing: it claims nothing."""

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        assert seen.private is not None
        return most_frequent(seen.private, size)
