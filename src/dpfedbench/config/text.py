"""Settings of the next-word task, for runs whose data are texts."""

from typing import TYPE_CHECKING

from dpfedbench.config.part import Section, setting
from dpfedbench.config.vocabularies.vocabulary import Public, Vocabulary
from dpfedbench.errors import BenchError

if TYPE_CHECKING:
    from dpfedbench.run import Run


class Text(Section):
    """Prediction of the next word in sequences of words.

    Each sequence is a record of its own, at which the model starts anew.
    """

    words: int = setting(
        2000, ge=1, le=1_000_000, doc="size of the vocabulary", paper="10,000"
    )
    record: int = setting(10, ge=1, le=10_000, doc="words of a record", paper="10")
    vocabulary: Vocabulary = setting(
        Public(), doc="source of the vocabulary", paper="private"
    )
    refine_batch: int = setting(
        20,
        ge=1,
        le=1_000_000,
        doc="records of an adaptation step at the meta-test",
        paper="10 to 120",
    )

    def check(self, run: "Run") -> None:
        if run.validation.ensemble != 1:
            raise BenchError(
                f"validation.ensemble is {run.validation.ensemble}, but one model tells"
                " the next word: set 1"
            )
        if not run.clients.disjoint:
            kinds = " or ".join(run.clients.kinds("tasks", disjoint=True))
            raise BenchError(
                f"clients.partition is {run.clients.partition}, but a text is one"
                f" client's: set it to {kinds}"
            )
