"""Sections that every run has and that ask nothing of the others."""

from typing import Any, Literal, Protocol

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Section, setting


class Clients(Section):
    """The clients of the federation and what each holds."""

    count: int = setting(ge=1, le=10_000_000, doc="clients of the federation, N")
    examples_per_class: int = setting(ge=2, le=100_000, doc="images of a class that a client holds")
    support_per_class: int = setting(ge=1, le=100_000, doc="of these, how many it adapts on")
    query_per_class: int = setting(ge=1, le=100_000, doc="of these, how many it takes its gradient on")
    partition: Literal["shared", "disjoint", "fragments", "dirichlet"] = setting(
        "shared",
        doc="shared: two clients may hold one image; disjoint: they do not; fragments: all records, sorted by label "
        "and cut into `fragments`, are dealt out, and the sizes above are not used; dirichlet: all records, each "
        "label's by shares of a Dirichlet draw, so that clients differ in labels and in size",
    )
    fragments: int | None = setting(None, ge=1, le=10_000_000, doc="of partition fragments: how many")
    concentration: float | None = setting(
        None, ge=1e-3, le=1e6, doc="of partition dirichlet: alpha; the smaller, the more clients differ"
    )
    least: int = setting(10, ge=1, le=10_000_000, doc="of partition dirichlet: records that a client has at least")

    def model_post_init(self, _: Any) -> None:
        """Refuse a client that would need more than it holds, and fragments that cannot be dealt out."""
        if self.partition == "fragments":
            self._check_fragments()
            return
        if self.partition == "dirichlet":
            if self.concentration is None:
                raise BenchError("clients.concentration is null: partition dirichlet needs it, 0.1 for instance")
            return
        need = self.support_per_class + self.query_per_class
        if need > self.examples_per_class:
            raise BenchError(
                f"clients.support_per_class + clients.query_per_class is {need}, more than "
                f"clients.examples_per_class ({self.examples_per_class}): lower them or raise that"
            )

    @property
    def records(self) -> bool:
        """Whether the partition is of labelled records; else it is of classes or texts, into tasks."""
        return self.partition in ("fragments", "dirichlet")

    @property
    def cut(self) -> Any:
        """What the partition of records is made by: how many fragments, or [concentration, least]."""
        return [self.concentration, self.least] if self.partition == "dirichlet" else self.fragments

    def _check_fragments(self) -> None:
        if self.fragments is None:
            raise BenchError("clients.fragments is null: partition fragments needs their number")
        if self.count > self.fragments:
            raise BenchError(
                f"clients.count is {self.count}, more than the {self.fragments} fragments of clients.fragments: "
                "lower it or raise that"
            )
        if self.fragments % self.count:
            raise BenchError(
                f"clients.fragments ({self.fragments}) is not a multiple of clients.count ({self.count}): "
                f"try {self.count * round(self.fragments / self.count)} fragments"
            )


class Validation(Section):
    """Validation while training, and the checkpoints that are used."""

    every: int = setting(0, ge=0, doc="rounds between validations; 0: never")
    tasks: int = setting(
        100, ge=1, le=1_000_000, doc="few-shot tasks; or records, which are taken out of the test part"
    )
    ensemble: int = setting(1, ge=1, le=1_000, doc="how many of the best checkpoints are averaged at the meta-test")
    public: bool = setting(True, doc="its data are nobody's secret; false: it may drive nothing")


class Evaluation(Section):
    """The meta-test: tasks of the test classes. A model that is used as it is, is tested on the whole test part."""

    every: int = setting(
        0, ge=0, doc="rounds between tests while training, of models used as they are and of texts; they change nothing"
    )
    while_training: int = setting(
        20, ge=1, le=1_000_000, doc="of a text: tasks of each of those tests, the first of `tasks`"
    )
    tasks: int = setting(200, ge=2, le=1_000_000, doc="meta-test tasks, all of test classes")
    query_per_class: int = setting(15, ge=1, le=100_000, doc="examples of a class that a meta-test task is scored on")
    steps: int = setting(5, ge=0, le=100_000, doc="adaptation steps of who uses the meta-model")
    rate: float = setting(0.4, gt=0, le=1e6, doc="their learning rate")


class HasSections(Protocol):
    """A run, as far as the settings of a text ask about it: `settings.run` builds on them."""

    @property
    def clients(self) -> Clients:
        """What clients hold."""

    @property
    def validation(self) -> Validation:
        """What a training is looked at by."""
