"""What a run is: its settings, its identity, its place under results/."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of
from dpfedbench.settings.initial import Initial, RandomInitial
from dpfedbench.settings.part import Part, Section, Settings, setting
from dpfedbench.settings.text import Text
from dpfedbench.settings.values import check_plain
from dpfedbench.settings.words import LOWER_CASE


class Task(Section):
    """What the model is used for."""

    ways: int = setting(ge=1, le=10_000, doc="classes of a task; 1 of a text")
    shots: int = setting(
        ge=0,
        le=10_000,
        doc="labelled examples of a class (of a text: records) at the meta-test; 0: the model is used as it is",
    )
    text: Text | None = setting(None, doc="of data that are texts: the next word is told; null: images are told apart")

    def model_post_init(self, _: Any) -> None:
        """Refuse a task of one class, unless it is a text's."""
        if self.text is None and self.ways < 2:
            raise BenchError(f"task.ways is {self.ways}: expected an integer of at least 2")
        if self.text is not None and self.ways != 1:
            raise BenchError(f"task.ways is {self.ways}, but a text (task.text) is one class: set it to 1")

    @property
    def outputs(self) -> int:
        """Logits of a model for this task: one a class; or one a word, and the first for all that it does not know."""
        return self.ways if self.text is None else self.text.words + 1


class Clients(Section):
    """The clients of the federation and what each holds."""

    count: int = setting(ge=1, le=10_000_000, doc="clients of the federation, N")
    examples_per_class: int = setting(ge=2, le=100_000, doc="images of a class that a client holds")
    support_per_class: int = setting(ge=1, le=100_000, doc="of these, how many it adapts on")
    query_per_class: int = setting(ge=1, le=100_000, doc="of these, how many it takes its gradient on")
    partition: Literal["shared", "disjoint", "fragments"] = setting(
        "shared",
        doc="shared: two clients may hold one image; disjoint: they do not; fragments: all records, sorted by label "
        "and cut into `fragments`, are dealt out, and the sizes above are not used",
    )
    fragments: int | None = setting(None, ge=1, le=10_000_000, doc="of partition fragments: how many")

    def model_post_init(self, _: Any) -> None:
        """Refuse a client that would need more than it holds, and fragments that cannot be dealt out."""
        if self.partition == "fragments":
            self._check_fragments()
            return
        need = self.support_per_class + self.query_per_class
        if need > self.examples_per_class:
            raise BenchError(
                f"clients.support_per_class + clients.query_per_class is {need}, more than "
                f"clients.examples_per_class ({self.examples_per_class}): lower them or raise that"
            )

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


class ModelSettings(Part):
    """A network; see `models.zoo`."""

    place: ClassVar[str] = "dpfedbench.models.zoo"

    @property
    def record_level(self) -> bool:
        """Whether a record may have a gradient of its own; false where the settings alone say that they are mixed."""
        return True

    @property
    def text(self) -> str:
        """A digest of the network's text where that is not dpfedbench's; else empty."""
        return ""

    def references(self, run: Any) -> "dict[str, Run]":
        """Other runs that the network needs a file of, by the file's name in their folder."""
        return {}

    def resolved(self, files: Mapping[str, Path]) -> "ModelSettings":
        """The network that needs no file, given those of `references`.

        Raises:
            BenchError: one is missing or damaged.
        """
        return self

    def without_references(self) -> "ModelSettings":
        """A network of the same size that needs no file of another run: what may be asked of one before there are."""
        return self

    def prepared(self, records: Any) -> Any:
        """What the network reads of records [n, ...]: a fixed map of each by itself; by default they themselves."""
        return records

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Any:
        """The model, a `models.net.Net`.

        Args:
            input_shape: of a record as prepared.
            outputs: logits of a record.

        Raises:
            BenchError: it does not fit such records.
        """
        raise NotImplementedError


class Validation(Section):
    """Validation while training, and the checkpoints that are used."""

    every: int = setting(0, ge=0, doc="rounds between validations; 0: never")
    tasks: int = setting(
        100, ge=1, le=1_000_000, doc="few-shot tasks; or records, which are taken out of the test part"
    )
    ensemble: int = setting(1, ge=1, le=1_000, doc="how many of the best checkpoints are averaged at the meta-test")
    public: bool = setting(True, doc="its data are nobody's secret; false: it may drive nothing")

    def notices(self, run: "Run") -> tuple[str, ...]:
        if run.task.shots:
            return ()
        return (f"{self.tasks} records of the test part are a public validation split; accuracy is on the rest",)


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


class Run(Settings):
    """One run: a method with all its settings, and a seed. Methods add their parts; see `dpfedbench.methods`.

    Raises:
        BenchError: a value is out of bounds, or two values do not go together.
    """

    method: str = setting(pattern=LOWER_CASE, doc="the name of the method")
    seed: int = setting(ge=0, lt=2**64, doc="of all random numbers")
    streams: Literal["shared", "own"] = setting(
        "shared",
        doc="of cohorts, lots and noise. shared: named by the seed, so that runs of one seed draw the same; own: by "
        "all settings of the run too, so that no two runs do, which composing them takes for granted: a search on "
        "private data sets it",
    )
    dataset: str = setting(pattern=LOWER_CASE, doc="the name of the data set")
    task: Task
    clients: Clients
    model: ModelSettings
    initial: Initial = RandomInitial()
    validation: Validation = Validation()
    evaluation: Evaluation = Evaluation()

    def model_post_init(self, _: Any) -> None:
        """Ask every section what has to hold between it and the rest."""
        for section in self.sections:
            section.check(self)
        self.check()

    def check(self) -> None:
        """Check what has to hold of the run as a whole, for methods to add to.

        Raises:
            BenchError: it does not hold.
        """

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections and parts, those within others too: the method's own first, then those of every run."""
        own = [key for key in type(self).model_fields if key not in Run.model_fields]
        return tuple(section for key in (*own, *Run.model_fields) for section in _within(getattr(self, key)))

    @property
    def private(self) -> bool:
        """Whether the run claims privacy."""
        return False

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Why something that its sections have computed from private data is a release without an event."""
        return tuple(reason for section in self.sections for reason in section.unaccounted)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader of this run's privacy must be told: printed and written beside the result."""
        if not self.private:
            return ()
        said = (notice for section in self.sections for notice in section.notices(self))
        return ("simulated privacy: the noise seed is public", *said)

    def tested_at(self, *, shots: int | None = None, **evaluation: Any) -> Self:
        """The same run under another meta-test: what is trained is the same, so its folder stays this run's.

        Args:
            shots: in place of task.shots.
            evaluation: in place of values of `evaluation`.

        Raises:
            BenchError: the model is used as it is and has no meta-test, or a value is out of bounds.
        """
        if not self.task.shots:
            raise BenchError("test is a meta-test's, but this run's model is used as it is: leave it out")
        if shots == 0:
            raise BenchError("test.shots is 0: a meta-test adapts to at least 1")
        task = self.task if shots is None else self.task.replace(shots=shots)
        return self.replace(task=task, evaluation=self.evaluation.replace(**evaluation))

    @property
    def test_name(self) -> str:
        """What a meta-test is called in the run's folder; says all that `tested_at` may change."""
        test = self.evaluation
        return (
            f"{self.task.shots}shot-{test.steps}steps-{test.rate:g}rate-{test.tasks}tasks-{test.query_per_class}query"
        )

    @functools.cached_property
    def key(self) -> str:
        """The run's identity: of all that differs from the defaults at its key's introduction, the seed aside."""
        values = {key: value for key, value in self.identity().items() if key != "seed"}
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def stream_seed(self) -> int:
        """What names the streams of all random numbers that an account takes for secret and independent of other runs'.

        The seed; where streams are the run's own, a number of 128 bits that follows from the seed and the key. Weights
        of the model, partitions and tasks of tests are drawn from the seed in any case: they read no private data, and
        runs that are compared should not differ by them.
        """
        if self.streams == "shared":
            return self.seed
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{self.key}".encode()).digest()[:16], "big")

    @property
    def task_name(self) -> str:
        """For people, e.g. "5-way 1-shot"."""
        if self.task.text is not None:
            return f"next word, {self.task.shots} records"
        return f"{self.task.ways}-way {self.task.shots}-shot" if self.task.shots else f"{self.task.ways} classes"

    @property
    def folder(self) -> str:
        """The run's place below results/runs."""
        task = f"{self.task.ways}way-{self.task.shots}shot" if self.task.shots else f"{self.task.ways}class"
        return f"{self.method}/{self.dataset}/{task}/{self.key}/seed{self.seed}"

    @property
    def clients_folder(self) -> str:
        """The place of the run's client partition below results/clients; runs with equal clients share it."""
        clients = self.clients
        if clients.partition == "fragments":
            return f"{self.dataset}/{clients.count}clients-{clients.fragments}fragments-seed{self.seed}"
        return (
            f"{self.dataset}/{self.task.ways}way-{clients.count}clients-{clients.examples_per_class}examples-"
            f"{clients.partition}-seed{self.seed}"
        )

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a run's config.yaml, that of a run of this method; `methods.read_run` reads one of any method.

        Raises:
            BenchError: it is missing, is not YAML, is of the former format or holds a bad value.
        """
        return cls.read(read_yaml(path))

    def to_yaml(self) -> str:
        """The text of config.yaml; `from_yaml` reads it back to an equal run."""
        text: str = yaml.safe_dump(self.plain(), sort_keys=False)
        return text


def _within(value: Any) -> Iterator[Section]:
    if isinstance(value, Section):
        yield value
        for key in type(value).model_fields:
            yield from _within(getattr(value, key))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The plain values of a run's config.yaml.

    Raises:
        BenchError: it is missing, is not YAML or is of the former format; says what to do.
    """
    text = text_of(path)
    try:
        values = yaml.safe_load(text)
        check_plain(values, "")
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, BenchError) as error:
        said = " ".join(str(error).split())
        raise BenchError(f"{path} is not valid YAML ({said}): delete it and run the workflow again") from error
    if not isinstance(values, Mapping):
        raise BenchError(f"{path} holds no configuration: delete it and run the workflow again")
    if "local" in values or any("rule" in section for section in values.values() if isinstance(section, Mapping)):
        raise BenchError(
            f"{path} is of the former format, which had clipping.rule and local: read it with the version that wrote "
            "it, or move that results folder aside and run the workflow again"
        )
    return dict(values)
