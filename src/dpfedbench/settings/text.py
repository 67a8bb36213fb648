"""The next word of a text: what a run's task is where its data are texts."""

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Section, setting
from dpfedbench.settings.sections import HasSections
from dpfedbench.settings.vocabularies.vocabulary import Public, Vocabulary


class Text(Section):
    """Sequences of words, whose next word is told; each is a record of its own, which
    starts anew.
    """

    words: int = setting(
        2000, ge=1, le=1_000_000, doc="words that the model knows", paper="10,000"
    )
    record: int = setting(10, ge=1, le=10_000, doc="words of a record", paper="10")
    vocabulary: Vocabulary = setting(
        Public(), doc="where these words are from", paper="private"
    )
    refine_batch: int = setting(
        20,
        ge=1,
        le=1_000_000,
        doc="records of a step of who uses the model",
        paper="10 to 120",
    )

    def check(self, run: HasSections) -> None:
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
