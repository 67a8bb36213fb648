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

    ways: int = setting(ge=1, le=10_000, doc="classes of a task; 1 for a text")
    shots: int = setting(
        ge=0,
        le=10_000,
        doc=(
            "labelled examples of a class (for a text: records) at the meta-test; 0:"
            " the model is tested without adaptation. Clients train with"
            " clients.support_per_class"
        ),
    )
    text: Text | None = setting(
        None,
        doc=("for texts: prediction of the next word; null: classification of images"),
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

    def check(self, run: Run) -> None:
        """Refuse settings of a meta-test that do not apply to this task."""
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
        """Number of logits of a model for this task.

        A model has one logit for each class. For texts it has one for each word, and
        the first for all unknown words.
        """
        return self.ways if self.text is None else self.text.words + 1


class ModelSettings(Part):
    """Network; see `models.zoo`."""

    package: ClassVar[str] = "dpfedbench.models.zoo"
    by_record: ClassVar[str] = "model.normalisation to record"
    """Setting under which no record's gradient depends on another record."""

    def adapted(self, tensors: Sequence[str]) -> Sequence[str] | None:
        """Return the network's tensors that adaptation to a task changes; None: all."""
        return None

    @property
    def record_level(self) -> bool:
        """Whether a record may have a gradient of its own.

        It is false where the settings alone imply that records are mixed.
        """
        return True

    @property
    def text(self) -> str:
        """Hash of the network's source file, where that is a plugin's; else empty."""
        return ""

    def references(self, run: Run) -> dict[str, Run]:
        """Return the runs whose files the network needs, by the file's name."""
        return {}

    def resolved(self, files: Mapping[str, Path]) -> ModelSettings:
        """Return the network without references, given the files of `references`.

        Raises:
            BenchError: a file is missing or damaged.
        """
        return self

    def without_references(self) -> ModelSettings:
        """Return a network of the same size that needs no file of another run.

        It answers questions about the size before these files exist.
        """
        return self

    def prepared(self, records: Any, public: Any = None) -> Any:
        """Return the network's inputs for records [n, ...]; by default the records.

        The inputs are a fixed map of each record separately.

        Args:
            records: the records as in the data set.
            public: records of the public validation split [m, ...], the only other data
                that the map may depend on.
        """
        return records

    def made_once(self, run: Run) -> dict[str, Any] | None:
        """Return plain values that `prepared` depends on besides the records.

        One job then computes the inputs for all runs. None: every run computes them
        itself.
        """
        return None

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Any:
        """Return the model, a `models.net.Net`.

        Args:
            input_shape: shape of a prepared record.
            outputs: number of logits of a record.

        Raises:
            BenchError: the network does not fit such records.
        """
        raise NotImplementedError


class Initial(Part):
    """Base of the initial weights of a training.

    The first release of a training discloses what its initial weights disclose of
    private data. So each kind of initial weights declares the private data that it
    depends on. There are three cases: none (`public_for`); the same records as the run,
    under an account that is composed with the run's (`references` has a ledger); or
    private data without an account (`without_account`), and then no finite epsilon is
    proven.
    """

    package: ClassVar[str] = "dpfedbench.models.initial"

    @property
    def told(self) -> str:
        """Source of the weights, for tables and figures; "" for random weights."""
        return ""

    def references(self, run: Run) -> dict[str, Run]:
        """Return the runs whose files are needed, by the name in their folder."""
        return {}

    def without_account(self, run: Run) -> tuple[str, ...]:
        """Return why no ledger covers what the weights disclose of private data.

        There are none where a ledger covers it, or where the weights disclose nothing.
        """
        return ()

    def public_for(self, run: Run) -> bool:
        """Return whether the weights are independent of all private data.

        These are the data of the run's clients and of anybody else.
        """
        return True

    def weights(self, run: Run, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        """Return the initial weights of the training, float32 [d].

        Args:
            run: the run to train.
            net: the model (`models.net.Net`).
            files: files of other runs, by name (`Method.references`).

        Raises:
            BenchError: a file is missing, damaged, or another network's.
        """
        raise NotImplementedError


class RandomInitial(Initial):
    """The network's own random weights, drawn from the run's seed."""

    kind: Literal["random"] = "random"

    def weights(self, run: Run, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        return net.initial(stream(run.seed, "initial-weights"))  # type: ignore[no-any-return]


class Run(Settings):
    """One run: a method with all its settings, and a seed.

    Methods add their parts; see `dpfedbench.papers`.

    Raises:
        BenchError: a value is out of bounds, or two values do not go together.
    """

    method: str = setting(pattern=LOWER_CASE, doc="name of the method")
    seed: int = setting(ge=0, lt=2**64, doc="seed of all random numbers")
    streams: Literal["shared", "own"] = setting(
        "shared",
        doc=(
            "random numbers of cohorts, lots and noise. shared: they follow from the"
            " seed, so that runs of one seed draw the same; own: they follow from all"
            " settings of the run too, so that no two runs draw the same, as an account"
            " that composes runs assumes (a search on private data sets this)"
        ),
    )
    reading: Literal["as-published", "as-released"] = setting(
        "as-published",
        doc=(
            "as-released: the run repeats the authors' code, even where no account"
            " covers it; its epsilon is then infinite and its claim void. A series sets"
            " it"
        ),
    )
    dataset: str = setting(pattern=LOWER_CASE, doc="name of the data set")
    task: Task
    clients: PartitionScheme
    model: ModelSettings
    initial: Initial = RandomInitial()
    validation: Validation = Validation()
    evaluation: Evaluation = Evaluation()

    claims: ClassVar[Claims] = {}
    """Accounting of the method's paper, by sampler; empty if it claims no epsilon."""
    pretrains: ClassVar[bool] = False
    """Whether the model is first trained to classify records of all training classes,
    and its body then adapted to few-shot tasks.
    """

    def model_post_init(self, _: Any) -> None:
        """Run the checks of every section against the rest of the run."""
        for component in self.components:
            # Parts of `dpsum` know no run; a part that extends one may check it.
            check = getattr(component, "check", None)
            if check is not None:
                check(self)
        self.check()

    def check(self) -> None:
        """Check the rules of the run as a whole; methods extend it.

        Raises:
            BenchError: a rule is violated.
        """

    @property
    def components(self) -> tuple[Any, ...]:
        """All sections and parts, including nested ones and those of `dpsum`.

        The method's own come first, then those of every run.
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
        """Components that are sections, which may check the whole run."""
        return tuple(
            component for component in self.components if isinstance(component, Section)
        )

    def find(self, family: type[Kind]) -> Kind | None:
        """Return the first top-level section of a class; None without one.

        Parts find one another by it: `run.find(Noise)` in a clipping rule, for
        instance.
        """
        values = (getattr(self, key) for key in type(self).model_fields)
        return next((value for value in values if isinstance(value, family)), None)

    def part(self, family: type[Kind]) -> Kind:
        """Return what `find` returns, but require a section of that class.

        Raises:
            LookupError: the run has none.
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
        """Return all sums of a round: each client's, in their order, then the server's.

        Privacy, notices, budget and audit of the run follow from them. The server moves
        the model by its last sum. Its sums before the last are those of further
        messages, in the order in which clients send them.
        """
        return []

    @property
    def client_sums(self) -> list[SumSpec]:
        """Sums that each client takes over its own records."""
        return [sum_ for sum_ in self.sums() if sum_.taken_by == "client"]

    @property
    def server_sum(self) -> SumSpec:
        """Sum by which the server moves the model."""
        return self.sums()[-1]

    @property
    def further_sums(self) -> list[SumSpec]:
        """The server's sums of further messages."""
        return [sum_ for sum_ in self.sums()[:-1] if sum_.taken_by == "server"]

    @property
    def references(self) -> dict[str, Run]:
        """Other runs whose files this run needs, by the file's name in their folder."""
        return {}

    @staticmethod
    def another(values: Mapping[str, Any]) -> Run:
        """Return the run of plain values, which include `method`.

        Raises:
            BenchError: there is no such run.
        """
        raise NotImplementedError

    @property
    def private(self) -> bool:
        """Whether the run claims privacy."""
        return False

    def tested_at(self, *, shots: int | None = None, **evaluation: Any) -> Self:
        """Return the same run under another meta-test, in the same folder.

        The training is the same, so that nothing is trained again.

        Args:
            shots: replaces task.shots.
            evaluation: replaces values of `evaluation`.

        Raises:
            BenchError: the model is tested without adaptation, so that it has no
                meta-test, or a value is out of bounds.
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
        can change.
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
        """Identity of the run: a hash of all non-default settings, without the seed.

        A setting that is added later does not change the key of a run, if its default
        keeps the run's behaviour.
        """
        values = {key: value for key, value in self.identity().items() if key != "seed"}
        canonical = json.dumps(
            values, sort_keys=True, separators=(",", ":"), allow_nan=False
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def stream_seed(self) -> int:
        """Seed of all random streams that an account assumes to be secret, and
        independent of other runs'.

        It is the run's seed or, with `streams: own`, a number of 128 bits that follows
        from the seed and the key. Initial weights, partitions and tasks of tests are
        always drawn from the seed: they read no private data, and compared runs should
        not differ by them.
        """
        if self.streams == "shared":
            return self.seed
        return int.from_bytes(
            hashlib.sha256(f"{self.seed}/{self.key}".encode()).digest()[:16], "big"
        )

    @property
    def task_name(self) -> str:
        """Name of the task for readers, e.g. "5-way 1-shot"."""
        if self.task.text is not None:
            return f"next word, {self.task.shots} records"
        return (
            f"{self.task.ways}-way {self.task.shots}-shot"
            if self.task.shots
            else f"{self.task.ways} classes"
        )

    @property
    def folder(self) -> str:
        """Folder of the run below results/runs."""
        task = (
            f"{self.task.ways}way-{self.task.shots}shot"
            if self.task.shots
            else f"{self.task.ways}class"
        )
        return f"{self.method}/{self.dataset}/{task}/{self.key}/seed{self.seed}"

    @property
    def clients_folder(self) -> str:
        """Folder of the run's client partition below results/clients.

        Runs with equal clients share it.
        """
        return f"{self.dataset}/{self.clients.folder(self.task.ways)}-seed{self.seed}"

    @property
    def drawn_from(self) -> dict[str, Any]:
        """Settings that the partition depends on, besides the data and the seed
        (`PartitionScheme.drawn_from`).
        """
        return self.clients.drawn_from(self.task.ways)

    def to_yaml(self) -> str:
        """Return the text of config.yaml.

        `read` creates an equal run from the values that `read_yaml` returns for it.
        """
        text: str = yaml.safe_dump(self.plain(), sort_keys=False)
        return text


def _within(value: Any) -> Iterator[Any]:
    if is_section(type(value)):
        yield value
        for key in fields_of(type(value)):
            yield from _within(getattr(value, key))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Safe loader by libyaml, where PyYAML was built with it; it is faster."""


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the plain values of a run's config.yaml.

    Raises:
        BenchError: the file is missing or is not YAML; names the remedy.
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
