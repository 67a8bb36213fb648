"""Configuration sections that all methods share."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import Part, Section, kinds_of, setting
from dpfedbench.config.plugin_sources import digest_classes
from dpfedbench.config.rules import Rule
from dpfedbench.config.text import Text
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np


class Task(Section):
    """Task that the model is trained for."""

    ways: int = setting(ge=1, le=10_000, doc="classes of a task; 1 for a text")
    shots: int = setting(
        ge=0,
        le=10_000,
        doc=(
            "labelled examples of a class (for a text: records) at the meta-test;"
            " 0: test without adaptation. Clients train with"
            " clients.support_per_class"
        ),
    )
    text: Text | None = setting(
        None,
        doc="prediction of the next word; null: classification of images",
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse a task of one class, unless its data are texts."""
        if self.text is None and self.ways < 2:
            raise BenchError(
                f"task.ways is {self.ways}: expected an integer of at least 2"
            )
        if self.text is not None and self.ways != 1:
            raise BenchError(
                f"task.ways is {self.ways}, but a text (task.text) is one class: set it"
                " to 1"
            )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda task, run: task.text is not None and not run.evaluation.is_plain,
            "evaluation.optimizer, batch, schedule and best_step are for few-shot"
            " tasks of images: leave them out for a text, of which a step reads"
            " task.text.refine_batch records",
        ),
        Rule(
            lambda task, run: (
                task.shots
                and run.evaluation.batch is not None
                and run.evaluation.batch > task.ways * task.shots
                and task.ways * task.shots
            ),
            "evaluation.batch is {run.evaluation.batch}, but a support set has {fault}"
            " examples: lower it to that",
        ),
    )

    @property
    def label(self) -> str:
        """Name of the task for readers, e.g. "5-way 1-shot"."""
        if self.text is not None:
            return f"next word, {self.shots} records"
        if self.shots:
            return f"{self.ways}-way {self.shots}-shot"
        return f"{self.ways} classes"

    @property
    def outputs(self) -> int:
        """Number of logits of a model for this task.

        A model has one logit for each class. For texts it has one for each word, and
        the first for all unknown words.
        """
        return self.ways if self.text is None else self.text.words + 1


class PartitionScheme(Part):
    """Clients of the federation and their data: base of the partitions of a data set.

    Attributes:
        partition: name of the partition.
        holds: data of the clients, "tasks" (few-shot, or of a text) or "records".
        equal_sizes: whether all clients hold equally many examples.
        disjoint: whether no two clients hold the same example.
        synthetic: whether the clients were invented by the partition; if not, each is
            one owner of the data, and N follows from the data (`eligible`).
    """

    package: ClassVar[str] = "dpfedbench.parts.partitions"
    tag: ClassVar[str] = "partition"
    default_kind: ClassVar[str] = "shared"
    holds: ClassVar[str] = "tasks"
    equal_sizes: ClassVar[bool] = True
    disjoint: ClassVar[bool] = True
    synthetic: ClassVar[bool] = True
    if TYPE_CHECKING:
        partition: str

    count: int = setting(
        ge=1,
        le=10_000_000,
        doc=(
            "clients, N; at most as many as owners with enough examples, if"
            " clients are natural"
        ),
    )
    examples_per_class: int = setting(
        ge=2,
        le=100_000,
        doc=(
            "images of a class that a client holds; like all sizes of tasks, not"
            " for clients that hold records"
        ),
    )
    support_per_class: int = setting(
        ge=1,
        le=100_000,
        doc=(
            "of these, images for adaptation in training; task.shots is for the"
            " meta-test"
        ),
    )
    query_per_class: int = setting(
        ge=1, le=100_000, doc="of these, images for the query gradient"
    )
    held_out_share: float = setting(
        0.0,
        ge=0,
        lt=1,
        doc=(
            "share of each client's records, or images of a class, that training"
            " leaves out to test the client's own model after the last round; 0: no"
            " such test"
        ),
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse clients that need more examples than they hold."""
        need = self.support_per_class + self.query_per_class
        if self.holds == "tasks" and need > self.examples_per_class:
            raise BenchError(
                f"clients.support_per_class + clients.query_per_class is {need}, more"
                f" than clients.examples_per_class ({self.examples_per_class}): lower"
                " them or raise that"
            )

    @classmethod
    def origin(cls) -> str:
        """Return who the clients are: "synthetic" or "owner"."""
        return "synthetic" if cls.synthetic else "owner"

    @classmethod
    def origin_of(cls, values: Mapping[str, Any]) -> str:
        """Return who the clients of a run are, from the run's plain values.

        Returns:
            "owner": each client is one owner of the data, or one text with its author;
            "synthetic": the partition invented the clients; "": the partition is not
            known here.
        """
        if (values.get("task") or {}).get("text") is not None:
            return "owner"
        name = (values.get("clients") or {}).get(cls.tag, cls.default_kind)
        scheme = kinds_of(cls).get(name)
        return "" if scheme is None else scheme.origin()

    @property
    def left_out_per_class(self) -> int:
        """Number of examples of a class that training leaves out at each client."""
        if not self.held_out_share:
            return 0
        return max(1, round(self.held_out_share * self.examples_per_class))

    @property
    def own_values(self) -> dict[str, Any]:
        """Kind of the partition, and the values of its own keys."""
        return {
            key: value
            for key, value in self.plain().items()
            if key not in PartitionScheme.model_fields
        }

    @property
    def text(self) -> str:
        """Hash of the partition's source file, where that is a plugin's; else empty."""
        return digest_classes([type(self)])

    def drawn_from(self, ways: int) -> dict[str, Any]:
        """Return the settings that the clients depend on.

        The data and the seed are not among them. Runs with equal settings share a
        partition, if these are equal too.
        """
        tasks = (
            {"examples_per_class": self.examples_per_class, "ways": ways}
            if self.holds == "tasks"
            else {}
        )
        return {**self.own_values, "count": self.count, **tasks}

    @classmethod
    def kinds(cls, holds: str, *, disjoint: bool = False) -> list[str]:
        """Return the partitions whose clients hold "tasks" or "records".

        With `disjoint`, return only those whose clients share no example.
        """
        return [
            kind
            for kind, clients in kinds_of(PartitionScheme).items()
            if clients.holds == holds and (clients.disjoint or not disjoint)
        ]

    @classmethod
    def from_settings(
        cls, drawn_from: Mapping[str, Any]
    ) -> "tuple[PartitionScheme, int]":
        """Return the clients with these settings, and the classes of a task.

        Sizes that these clients do not depend on are set to the smallest value.
        """
        values = {
            "examples_per_class": 2,
            "support_per_class": 1,
            "query_per_class": 1,
            "ways": 1,
            **drawn_from,
        }
        ways = values.pop("ways")
        return kinds_of(cls)[values[cls.tag]].read(values), ways

    def folder(self, ways: int) -> str:
        """Return the name of the clients' folder, without the data set and the seed."""
        text = json.dumps(self.drawn_from(ways), sort_keys=True)
        return f"{self.count}clients-{self.partition}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def check_room(self, dataset: str, *, ways: int, classes: int, each: int) -> None:
        """Refuse more clients than the data allow, as far as that is known beforehand.

        The data need not be prepared yet.

        Args:
            dataset: name of the data set.
            ways: number of classes of a task.
            classes: number of training classes; 1 for records.
            each: number of images of a class; for records, of all training records.

        Raises:
            BenchError: gives both numbers.
        """

    def eligible(self, counts: "np.ndarray", *, ways: int) -> "np.ndarray":
        """Return the owners that have enough examples to be a client, ascending.

        Only partitions whose clients are owners define this.

        Args:
            counts: int64 [owners, classes], training examples of each owner of each
                class; one column where only their number matters.
            ways: number of classes of a task.
        """
        raise NotImplementedError

    def make(self, data_dir: Path, *, ways: int, seed: int) -> Any:
        """Create the clients (`data.clients_folder.ClientsFolder`) of a data set.

        Raises:
            BenchError: these data do not allow such a partition.
        """
        raise NotImplementedError


class Validation(Section):
    """Validation during training, and the choice of checkpoints."""

    every: int = setting(0, ge=0, doc="rounds between validations; 0: never")
    tasks: int = setting(
        100,
        ge=1,
        le=1_000_000,
        doc="few-shot tasks, or records out of the test part",
    )
    ensemble: int = setting(
        1,
        ge=1,
        le=1_000,
        doc="best checkpoints that the meta-test averages",
    )
    public: bool = setting(
        True,
        doc=(
            "whether its data are public; if not, it must not influence training,"
            " and a private run has a notice: no account covers validation"
            " accuracies"
        ),
    )


class Evaluation(Section):
    """Meta-test on tasks of the test classes.

    A model that is not adapted is tested on the whole test part.
    """

    every: int = setting(
        0,
        ge=0,
        doc=(
            "rounds between tests during training, of models without adaptation"
            " and of texts; 0: none. They do not influence the training"
        ),
    )
    while_training: int = setting(
        20,
        ge=1,
        le=1_000_000,
        doc="for texts: tasks of each test during training, the first of `tasks`",
    )
    tasks: int = setting(
        200, ge=2, le=1_000_000, doc="number of meta-test tasks, all of test classes"
    )
    query_per_class: int = setting(
        15,
        ge=1,
        le=100_000,
        doc="examples of a class that score a task",
    )
    steps: int = setting(
        5, ge=0, le=100_000, doc="adaptation steps of the meta-model on a task"
    )
    rate: float = setting(0.4, gt=0, le=1e6, doc="learning rate of these steps")
    optimizer: Literal["sgd", "adam"] = setting(
        "sgd",
        doc="their optimiser, new in each task; for few-shot images",
        paper="adam (Nichol et al. 2018)",
    )
    beta1: float = setting(
        0.9, ge=0, lt=1, doc="beta1 of Adam", paper="0 (Nichol et al.)"
    )
    batch: int | None = setting(
        None,
        ge=1,
        le=100_000,
        doc=(
            "support examples of a step, for few-shot images, in a new random"
            " order in each pass; null: all"
        ),
        paper="5 (Nichol et al.)",
    )
    schedule: Literal["constant", "cosine"] = setting(
        "constant",
        doc="schedule of the rate, for few-shot images; cosine: from `rate` to 0",
        paper="DP-FedMeta's released code, for its Figure 5: cosine",
    )

    @property
    def is_plain(self) -> bool:
        """Whether the steps are gradient descent on all examples at one rate."""
        plain_steps = self.optimizer == "sgd" and self.schedule == "constant"
        return plain_steps and self.batch is None and not self.best_step

    best_step: bool = setting(
        False,
        doc=(
            "for few-shot images: score the step with the best accuracy on the"
            " query set, as DP-FedMeta's released code does: the same examples"
            " choose and score"
        ),
    )
