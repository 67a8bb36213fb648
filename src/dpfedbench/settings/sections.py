"""Sections that every run has and that ask nothing of the others."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, Section, kinds_of, setting
from dpfedbench.settings.plugin_sources import digest_classes


class PartitionScheme(Part):
    """The clients of the federation and what each holds: base of the partitions, which
    say how data are shared out.

    `partition` is the name of one. `proven`: what its clients hold, "tasks" (few-shot,
    or of a text) or "records". `equal_sizes`: whether all of them hold as much.
    `disjoint`: whether no two of them hold the same example.
    """

    package: ClassVar[str] = "dpfedbench.parts.partitions"
    tag: ClassVar[str] = "partition"
    default_kind: ClassVar[str] = "shared"
    holds: ClassVar[str] = "tasks"
    equal_sizes: ClassVar[bool] = True
    disjoint: ClassVar[bool] = True
    if TYPE_CHECKING:
        partition: str

    count: int = setting(ge=1, le=10_000_000, doc="clients of the federation, N")
    examples_per_class: int = setting(
        ge=2,
        le=100_000,
        doc=(
            "images of a class that a client holds; sizes of tasks are not used of"
            " records"
        ),
    )
    support_per_class: int = setting(
        ge=1,
        le=100_000,
        doc="of these, how many it adapts on in training; task.shots is the meta-test's",
    )
    query_per_class: int = setting(
        ge=1, le=100_000, doc="of these, how many it takes its gradient on"
    )
    held_out_share: float = setting(
        0.0,
        ge=0,
        lt=1,
        doc=(
            "share of each client's own records, or of its images of a class, that"
            " training leaves out; its own model is tested on them after the last"
            " round; 0: there is no such test"
        ),
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse a client that would need more than it holds."""
        need = self.support_per_class + self.query_per_class
        if self.holds == "tasks" and need > self.examples_per_class:
            raise BenchError(
                f"clients.support_per_class + clients.query_per_class is {need}, more"
                f" than clients.examples_per_class ({self.examples_per_class}): lower"
                " them or raise that"
            )

    @property
    def left_out_per_class(self) -> int:
        """Examples of each class of a few-shot client that training leaves out."""
        if not self.held_out_share:
            return 0
        return max(1, round(self.held_out_share * self.examples_per_class))

    @property
    def own(self) -> dict[str, Any]:
        """Its kind, and the plain values of the keys that it has and not every
        partition.
        """
        return {
            key: value
            for key, value in self.plain().items()
            if key not in PartitionScheme.model_fields
        }

    @property
    def text(self) -> str:
        """A hash of the partition's file where that is a plugin's; else empty."""
        return digest_classes([type(self)])

    def drawn_from(self, ways: int) -> dict[str, Any]:
        """Return the settings that the clients depend on, besides the data and the
        seed. Runs with equal ones share a partition.
        """
        tasks = (
            {"examples_per_class": self.examples_per_class, "ways": ways}
            if self.holds == "tasks"
            else {}
        )
        return {**self.own, "count": self.count, **tasks}

    @classmethod
    def kinds(cls, holds: str, *, disjoint: bool = False) -> list[str]:
        """The partitions whose clients hold "tasks", or "records"; or of these only the
        ones that are `disjoint`.
        """
        family = cast("dict[str, type[PartitionScheme]]", kinds_of(PartitionScheme))
        return [
            kind
            for kind, clients in family.items()
            if clients.holds == holds and (clients.disjoint or not disjoint)
        ]

    @classmethod
    def of(cls, drawn_from: Mapping[str, Any]) -> "tuple[PartitionScheme, int]":
        """The clients that are drawn from this, and the classes of a task; sizes that
        do not matter are the least.
        """
        values = {
            "examples_per_class": 2,
            "support_per_class": 1,
            "query_per_class": 1,
            "ways": 1,
            **drawn_from,
        }
        ways = values.pop("ways")
        return kinds_of(cls)[values[cls.tag]].read(values), ways  # type: ignore[return-value]

    def folder(self, ways: int) -> str:
        """Their folder's name, without the data set and the seed."""
        text = json.dumps(self.drawn_from(ways), sort_keys=True)
        return f"{self.count}clients-{self.partition}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def check_room(self, dataset: str, *, ways: int, classes: int, each: int) -> None:
        """Refuse more clients than there are data for, as far as that is known before
        the data are prepared.

        Args:
            dataset: its name.
            ways: classes of a task.
            classes: training classes; 1 of records.
            each: images of a class; of records, all training records.

        Raises:
            BenchError: says both numbers.
        """

    def make(self, data_dir: Path, *, ways: int, seed: int) -> Any:
        """The clients (`data.clients_folder.ClientsFolder`), of a prepared data set.

        Raises:
            BenchError: they cannot be had of these data.
        """
        raise NotImplementedError


class Validation(Section):
    """Validation while training, and the checkpoints that are used."""

    every: int = setting(0, ge=0, doc="rounds between validations; 0: never")
    tasks: int = setting(
        100,
        ge=1,
        le=1_000_000,
        doc="few-shot tasks; or records, which are taken out of the test part",
    )
    ensemble: int = setting(
        1,
        ge=1,
        le=1_000,
        doc="how many of the best checkpoints are averaged at the meta-test",
    )
    public: bool = setting(
        True, doc="its data are nobody's secret; false: it may drive nothing"
    )


class Evaluation(Section):
    """The meta-test: tasks of the test classes. A model that is used as it is, is
    tested on the whole test part.
    """

    every: int = setting(
        0,
        ge=0,
        doc=(
            "rounds between tests while training, of models used as they are and of"
            " texts; they change nothing"
        ),
    )
    while_training: int = setting(
        20,
        ge=1,
        le=1_000_000,
        doc="of a text: tasks of each of those tests, the first of `tasks`",
    )
    tasks: int = setting(
        200, ge=2, le=1_000_000, doc="meta-test tasks, all of test classes"
    )
    query_per_class: int = setting(
        15,
        ge=1,
        le=100_000,
        doc="examples of a class that a meta-test task is scored on",
    )
    steps: int = setting(
        5, ge=0, le=100_000, doc="adaptation steps of who uses the meta-model"
    )
    rate: float = setting(0.4, gt=0, le=1e6, doc="their learning rate")
    optimizer: Literal["sgd", "adam"] = setting(
        "sgd",
        doc="what takes the steps, of few-shot tasks of images; it starts anew at each",
        paper="adam (Nichol et al. 2018)",
    )
    beta1: float = setting(
        0.9, ge=0, lt=1, doc="of Adam's mean of gradients", paper="0 (Nichol et al.)"
    )
    batch: int | None = setting(
        None,
        ge=1,
        le=100_000,
        doc=(
            "support examples of a step, of few-shot tasks of images: each pass over"
            " them in a new random order; null: all of them"
        ),
        paper="5 (Nichol et al.)",
    )
    schedule: Literal["constant", "cosine"] = setting(
        "constant",
        doc=(
            "how the rate moves over the steps, of few-shot tasks of images; cosine:"
            " from `rate` to 0"
        ),
        paper="DP-FedMeta's released code, for its Figure 5: cosine",
    )
    best_step: bool = setting(
        False,
        doc=(
            "of few-shot tasks of images: score the step that the query set likes best,"
            " as DP-FedMeta's released code does; it chooses on what it is scored on"
        ),
    )


class HasSections(Protocol):
    """A run, as far as the settings of a text ask about it: `settings.run` builds on
    them.
    """

    @property
    def clients(self) -> PartitionScheme:
        """Settings of the clients."""

    @property
    def validation(self) -> Validation:
        """Settings of the validation."""
