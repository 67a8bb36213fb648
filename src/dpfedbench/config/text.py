"""Settings of the next-word task, for runs whose data are texts."""

from typing import ClassVar

from dpfedbench.config.part import Section, setting
from dpfedbench.config.rules import Rule
from dpfedbench.config.vocabularies.vocabulary import Public, Vocabulary


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

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda text, run: run.validation.ensemble != 1,
            "validation.ensemble is {run.validation.ensemble}, but one model tells"
            " the next word: set 1",
        ),
        Rule(
            lambda text, run: (
                not run.clients.disjoint
                and " or ".join(run.clients.kinds("tasks", disjoint=True))
            ),
            "clients.partition is {run.clients.partition}, but a text is one"
            " client's: set it to {fault}",
        ),
    )
