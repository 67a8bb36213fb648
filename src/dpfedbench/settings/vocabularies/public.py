"""Words of the public text."""

from __future__ import annotations

from typing import Literal

from dpfedbench.lazy import np
from dpfedbench.settings.vocabularies.vocabulary import SeenText, Vocabulary


class Public(Vocabulary):
    """The most frequent words of the data set's public text: nothing of a client is in it."""

    kind: Literal["public"] = "public"

    def choose(self, seen: SeenText, size: int) -> np.ndarray:
        return most_frequent(seen.public, size)


def most_frequent(counts: np.ndarray, size: int) -> np.ndarray:
    """The places of the largest counts above zero, the larger first, then in alphabetical order."""

    frequent = np.argsort(-counts, kind="stable")[:size]
    return frequent[counts[frequent] > 0]
