"""Runs: their settings, their identity, and their folder under results/."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import yaml

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of
from dpfedbench.lazy import np
from dpfedbench.settings.families import is_section
from dpfedbench.settings.library import fields_of
from dpfedbench.settings.messages import LOWER_CASE
from dpfedbench.settings.part import Part, Section, Settings, setting
from dpfedbench.settings.sections import Evaluation, PartitionScheme, Validation
from dpfedbench.settings.text import Text
from dpfedbench.settings.values import check_plain
from dpfedbench.settings.yaml_files import check_text
from dpsum.accounting.claims import Claims
from dpsum.randomness import stream
from dpsum.sums import SumSpec

Kind = TypeVar("Kind")


class Task(Section):
    """Task that the model is trained for."""

    ways: int = setting(ge=1, le=10_000, doc="classes of a task; 1 of a text")
    shots: int = setting(
        ge=0,
        le=10_000,
        doc=(
            "labelled examples of a class (of a text: records) at the meta-test; 0: the"
            " model is used as it is. Clients train with clients.support_per_class"
        ),
    )
    text: Text | None = setting(
        None,
        doc=(
            "of data that are texts: the next word is told; null: images are told apart"
        ),
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse a task of one class, unless it is a text's."""
        if self.text is None and self.ways < 2:
            raise BenchError(
                f"task.ways is {self.ways}: expected an integer of at least 2"
            )
        if self.text is not None and self.ways != 1:
            raise BenchError(
                f"task.ways is {self.ways}, but a text (task.text) is one class: set it"
                " to 1"
            )

    def check(self, run: Run) -> None:
        """Refuse steps of a meta-test that this task's test does not have."""
        test = run.evaluation
        plain = test.optimizer == "sgd" and test.batch is None
        if not plain and self.text is not None:
            raise BenchError(
                "evaluation.optimizer and evaluation.batch are for few-shot tasks of"
                " images: leave them out for a text, of which a step reads"
                " task.text.refine_batch records"
            )
        if self.text is not None and (test.schedule != "constant" or test.best_step):
            raise BenchError(
                "evaluation.schedule and evaluation.best_step are for few-shot tasks of"
                " images: leave them out for a text"
            )
        support = self.ways * self.shots
        if test.batch is not None and self.shots and test.batch > support:
            raise BenchError(
                f"evaluation.batch is {test.batch}, but a support set has {support}"
                " examples: lower it to that"
            )

    @property
    def outputs(self) -> int:
        """Logits of a model for this task: one a class; or one a word, and the first
        for all that it does not know.
        """
        return self.ways if self.text is None else self.text.words + 1


class ModelSettings(Part):
    """A network; see `models.zoo`."""

    package: ClassVar[str] = "dpfedbench.models.zoo"
    by_record: ClassVar[str] = "model.normalisation to record"
    """What to set so that no record's gradient depends on another record."""

    def adapted(self, tensors: Sequence[str]) -> Sequence[str] | None:
        """Return which of the network's tensors adapting to a task moves; None: all."""
        return None

    @property
    def record_level(self) -> bool:
        """Whether a record may have a gradient of its own; false where the settings
        alone say that they are mixed.
        """
        return True

    @property
    def text(self) -> str:
        """A digest of the network's text where that is not dpfedbench's; else empty."""
        return ""

    def references(self, run: Run) -> dict[str, Run]:
        """Other runs that the network needs a file of, by the file's name in their
        folder.
        """
        return {}

    def resolved(self, files: Mapping[str, Path]) -> ModelSettings:
        """The network that needs no file, given those of `references`.

        Raises:
            BenchError: one is missing or damaged.
        """
        return self

    def without_references(self) -> ModelSettings:
        """A network of the same size that needs no file of another run: what may be
        asked of one before there are.
        """
        return self

    def prepared(self, records: Any, public: Any = None) -> Any:
        """Return the network's inputs for records [n, ...]: a fixed map of each record
        by itself; by default the records themselves.

        Args:
            records: as the data set has them.
            public: those of the public validation split [m, ...], which alone the map
                may depend on.
        """
        return records

    def made_once(self, run: Run) -> dict[str, Any] | None:
        """Return plain values that `prepared` depends on besides the records, where one
        job computes it for all runs; else None.
        """
        return None

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Any:
        """The model, a `models.net.Net`.

        Args:
            input_shape: of a record as prepared.
            outputs: logits of a record.

        Raises:
            BenchError: it does not fit such records.
        """
        raise NotImplementedError


class Initial(Part):
    """Base of the starts.

    What private data made of weights leaves with the first release of who starts from
    them. So a start says what it has read: nothing private (`public_for`), the same
    records as the run under an account that is composed with it (`references` has a
    ledger), or private data without an account (`without_account`), and then nothing
    finite holds.
    """

    package: ClassVar[str] = "dpfedbench.models.initial"

    @property
    def told(self) -> str:
        """For tables and figures: where the weights are from; "" where they are
        random.
        """
        return ""

    def references(self, run: Run) -> dict[str, Run]:
        """The other runs whose files it needs, by the file's name in their folder."""
        return {}

    def without_account(self, run: Run) -> tuple[str, ...]:
        """Why no ledger has what the weights tell of private data; nothing where one
        has it, or they tell nothing.
        """
        return ()

    def public_for(self, run: Run) -> bool:
        """Whether the weights tell nothing of what a run's clients hold, nor of anybody
        else's private data.
        """
        return True

    def weights(self, run: Run, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        """The weights that training starts from, float32 [d].

        Args:
            run: whose training starts there.
            net: the model (`models.net.Net`).
            files: of other runs, by name (`Method.references`).

        Raises:
            BenchError: a file is missing, damaged, or another network's.
        """
        raise NotImplementedError


class RandomInitial(Initial):
    """The network's own random weights, of the run's seed."""

    kind: Literal["random"] = "random"

    def weights(self, run: Run, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        return net.initial(stream(run.seed, "initial-weights"))  # type: ignore[no-any-return]


class Run(Settings):
    """One run: a method with all its settings, and a seed. Methods add their parts; see
    `dpfedbench.papers`.

    Raises:
        BenchError: a value is out of bounds, or two values do not go together.
    """

    method: str = setting(pattern=LOWER_CASE, doc="the name of the method")
    seed: int = setting(ge=0, lt=2**64, doc="of all random numbers")
    streams: Literal["shared", "own"] = setting(
        "shared",
        doc=(
            "random numbers of cohorts, lots and noise. shared: they follow from the"
            " seed, so that runs of one seed draw the same; own: from all settings of"
            " the run too, so that no two runs draw the same, as an account that"
            " composes runs takes for granted (a search on private data sets this)"
        ),
    )
    reading: Literal["as-published", "as-released"] = setting(
        "as-published",
        doc=(
            "as-released: what the authors' code does, also where no account covers it;"
            " its epsilon is then infinite and its claim void. A series sets it"
        ),
    )
    dataset: str = setting(pattern=LOWER_CASE, doc="the name of the data set")
    task: Task
    clients: PartitionScheme
    model: ModelSettings
    initial: Initial = RandomInitial()
    validation: Validation = Validation()
    evaluation: Evaluation = Evaluation()

    claims: ClassVar[Claims] = {}
    """The accounting of the method's paper, by sampler; empty where it claims no
    epsilon.
    """
    pretrains: ClassVar[bool] = False
    """Whether records of all training classes are told apart first, and the body is
    then adapted to few-shot tasks.
    """

    def model_post_init(self, _: Any) -> None:
        """Ask every section what has to hold between it and the rest."""
        for component in self.components:
            # Parts of `dpsum` know no run; a part that extends one may check it.
            check = getattr(component, "check", None)
            if check is not None:
                check(self)
        self.check()

    def check(self) -> None:
        """Check what has to hold of the run as a whole, for methods to add to.

        Raises:
            BenchError: it does not hold.
        """

    @property
    def components(self) -> tuple[Any, ...]:
        """All sections and parts, those within others and those of `dpsum` too: the
        method's own first, then those of every run.
        """
        method_keys = [
            key for key in type(self).model_fields if key not in Run.model_fields
        ]
        return tuple(
            component
            for key in (*method_keys, *Run.model_fields)
            for component in _within(getattr(self, key))
        )

    @property
    def sections(self) -> tuple[Section, ...]:
        """The components that are sections, and so may say something of the run."""
        return tuple(
            component for component in self.components if isinstance(component, Section)
        )

    def find(self, family: type[Kind]) -> Kind | None:
        """The first of the run's own sections that is of a class; None where none is.

        So parts ask for one another: `run.find(Noise)` in a clipping rule.
        """
        values = (getattr(self, key) for key in type(self).model_fields)
        return next((value for value in values if isinstance(value, family)), None)

    def part(self, family: type[Kind]) -> Kind:
        """Like `find`, but the run has to have a section of that class.

        Raises:
            LookupError: it has none.
        """
        chosen = self.find(family)
        if chosen is None:
            raise LookupError(f"{self.method} has no {family.__name__}")
        return chosen

    @property
    def client_data(self) -> str:
        """Kind of data that clients hold: "tasks" (few-shot) or "records"."""
        return "tasks"

    def sums(self) -> list[SumSpec]:
        """Return all sums of a round: those that each client takes, in their order,
        then those of the server.

        What is private, its notices, its budget and its audit follow from these. The
        server's last sum is that of the message by which it moves the model. The ones
        before it are of further messages, in the order in which clients send them.
        """
        return []

    @property
    def client_sums(self) -> list[SumSpec]:
        """The sums that each client takes over its own records."""
        return [sum_ for sum_ in self.sums() if sum_.taken_by == "client"]

    @property
    def server_sum(self) -> SumSpec:
        """The sum by which the server moves the model."""
        return self.sums()[-1]

    @property
    def further_sums(self) -> list[SumSpec]:
        """The server's sums of further messages."""
        return [sum_ for sum_ in self.sums()[:-1] if sum_.taken_by == "server"]

    @property
    def references(self) -> dict[str, Run]:
        """Other runs that this one takes a file of, by the file's name in their
        folder.
        """
        return {}

    @staticmethod
    def another(values: Mapping[str, Any]) -> Run:
        """The run that plain values name, `method` among them.

        Raises:
            BenchError: there is none.
        """
        raise NotImplementedError

    @property
    def private(self) -> bool:
        """Whether the run claims privacy."""
        return False

    def tested_at(self, *, shots: int | None = None, **evaluation: Any) -> Self:
        """The same run under another meta-test: what is trained is the same, so its
        folder stays this run's.

        Args:
            shots: in place of task.shots.
            evaluation: in place of values of `evaluation`.

        Raises:
            BenchError: the model is used as it is and has no meta-test, or a value is
                out of bounds.
        """
        if not self.task.shots:
            raise BenchError(
                "test is a meta-test's, but this run's model is used as it is: leave"
                " it out"
            )
        if shots == 0:
            raise BenchError("test.shots is 0: a meta-test adapts to at least 1")
        task = self.task if shots is None else self.task.replace(shots=shots)
        return self.replace(task=task, evaluation=self.evaluation.replace(**evaluation))

    @property
    def test_name(self) -> str:
        """Name of the meta-test in the run's folder; it has all values that `tested_at`
        may change.
        """
        test = self.evaluation
        name = f"{self.task.shots}shot-{test.steps}steps-{test.rate:g}rate-{test.tasks}tasks-{test.query_per_class}query"
        if test.optimizer != "sgd":
            name += f"-{test.optimizer}{test.beta1:g}"
        if test.batch is not None:
            name += f"-{test.batch}batch"
        if test.schedule != "constant":
            name += f"-{test.schedule}"
        if test.best_step:
            name += "-best"
        return name

    @functools.cached_property
    def key(self) -> str:
        """The run's identity: a hash of all settings that differ from their defaults,
        without the seed.

        A setting that is added later, with a default under which nothing changes, moves
        no run.
        """
        values = {key: value for key, value in self.identity().items() if key != "seed"}
        canonical = json.dumps(
            values, sort_keys=True, separators=(",", ":"), allow_nan=False
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def stream_seed(self) -> int:
        """Seed of all random streams that an account takes to be secret, and
        independent of other runs'.

        The seed; where streams are the run's own, a number of 128 bits that follows
        from the seed and the key. Weights of the model, partitions and tasks of tests
        are drawn from the seed in any case: they read no private data, and runs that
        are compared should not differ by them.
        """
        if self.streams == "shared":
            return self.seed
        return int.from_bytes(
            hashlib.sha256(f"{self.seed}/{self.key}".encode()).digest()[:16], "big"
        )

    @property
    def task_name(self) -> str:
        """For people, e.g. "5-way 1-shot"."""
        if self.task.text is not None:
            return f"next word, {self.task.shots} records"
        return (
            f"{self.task.ways}-way {self.task.shots}-shot"
            if self.task.shots
            else f"{self.task.ways} classes"
        )

    @property
    def folder(self) -> str:
        """The run's place below results/runs."""
        task = (
            f"{self.task.ways}way-{self.task.shots}shot"
            if self.task.shots
            else f"{self.task.ways}class"
        )
        return f"{self.method}/{self.dataset}/{task}/{self.key}/seed{self.seed}"

    @property
    def clients_folder(self) -> str:
        """The place of the run's client partition below results/clients; runs with
        equal clients share it.
        """
        return f"{self.dataset}/{self.clients.folder(self.task.ways)}-seed{self.seed}"

    @property
    def drawn_from(self) -> dict[str, Any]:
        """Settings that the partition depends on, besides the data and the seed
        (`PartitionScheme.drawn_from`).
        """
        return self.clients.drawn_from(self.task.ways)

    def to_yaml(self) -> str:
        """The text of config.yaml; `read` makes an equal run of what `read_yaml` finds
        in it.
        """
        text: str = yaml.safe_dump(self.plain(), sort_keys=False)
        return text


def _within(value: Any) -> Iterator[Any]:
    if is_section(type(value)):
        yield value
        for key in fields_of(type(value)):
            yield from _within(getattr(value, key))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader by libyaml, where PyYAML was built with it; it is faster."""


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The plain values of a run's config.yaml.

    Raises:
        BenchError: it is missing or is not YAML; says what to do.
    """
    text = text_of(path)
    try:
        values = yaml.load(text, Loader=_LOADER)
        check_text(text, str(path))
        check_plain(values, "")
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, BenchError) as error:
        reason = " ".join(str(error).split())
        raise BenchError(
            f"{path} is not valid YAML ({reason}): delete it and run the workflow again"
        ) from error
    if not isinstance(values, Mapping):
        raise BenchError(
            f"{path} holds no configuration: delete it and run the workflow again"
        )
    return dict(values)
