"""Runs: resolved configurations with a seed, their identity and their folders.

A run is an instance of a method (`dpfedbench.method`), whose class states its parts and
sums. This module knows no part and no method.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import yaml

from dpfedbench import plugins
from dpfedbench.config.initial_weights import Initial, RandomInitial
from dpfedbench.config.kinds import is_part, is_section, kind_of
from dpfedbench.config.merge import lay
from dpfedbench.config.messages import LOWER_CASE, nearest
from dpfedbench.config.model_settings import ModelSettings
from dpfedbench.config.part import Settings, setting, states
from dpfedbench.config.plugin_sources import digest_classes
from dpfedbench.config.rules import Rule, rules_of
from dpfedbench.config.schema import (
    differing_values,
    fields_of,
    keys_of,
    plain,
    value_fault,
)
from dpfedbench.config.sections import Evaluation, PartitionScheme, Task, Validation
from dpfedbench.config.yaml_files import load_yaml
from dpfedbench.errors import BenchError
from dpfedbench.files import text_of
from dpfedbench.lazy import np
from dpfedbench.manifests import mend
from dpsum.accounting.claims import Claims, counting_clients
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpsum.clipping import ClippingRule
    from dpsum.noise import Noise
    from dpsum.participation import Participation


class Run(Settings):
    """Resolved configuration with a seed: base of all methods.

    It has the settings of every method, the run's identity and folders, and what
    follows from the sums that the method states. Breaches and notices of a run are in
    `dpfedbench.breaches`.

    Raises:
        BenchError: a value is out of bounds, or two values do not go together.
    """

    method: str = setting(pattern=LOWER_CASE, doc="name of the method")
    seed: int = setting(ge=0, lt=2**64, doc="seed of all random numbers")
    streams: Literal["shared", "own"] = setting(
        "shared",
        doc=(
            "random numbers of cohorts, lots and noise. shared: they follow from"
            " the seed alone; own: from all settings of the run too, so that no two"
            " runs draw the same, as an account that composes runs assumes (a"
            " search on private data sets this)"
        ),
    )
    reading: Literal["as-published", "as-released"] = setting(
        "as-published",
        doc=(
            "as-released: the authors' code, even where no account covers it: its"
            " epsilon is then infinite and its claim void. A series sets it"
        ),
    )
    dataset: str = setting(pattern=LOWER_CASE, doc="name of the data set")
    task: Task
    clients: PartitionScheme
    model: ModelSettings
    initial: Initial = RandomInitial()
    validation: Validation = Validation()
    evaluation: Evaluation = Evaluation()

    known: ClassVar[dict[str, type[Run]]] = {}
    """All methods by name; `dpfedbench.papers` fills it."""

    if TYPE_CHECKING:  # what a method states
        name: ClassVar[str]
        title: ClassVar[str]
        paper: ClassVar[str]
        version: ClassVar[str]
        neutral: ClassVar[Mapping[str, Any]]
        trained: ClassVar[bool]
        pretrains: ClassVar[bool]
        shared: ClassVar[str | Sequence[str]]
        claims: ClassVar[Claims]
        participation: Any  # each method declares its own types
        client_update: Any
        server: Any
        clipping: ClippingRule
        noise: Noise

    def __init__(self, **values: Any) -> None:
        """Create a run from values that differ from those of the class.

        Args:
            values: values by key. A mapping is laid over the section or part of the
                class, and a section or part replaces it. Without `seed` it is 0.

        Raises:
            BenchError: an unknown key or kind, or a value out of bounds.
        """
        stated = {"method": type(self).name, "seed": 0} | values
        plain_values = {
            key: value for key, value in stated.items() if not is_section(type(value))
        }
        laid = lay(type(self), self.default_values(), plain_values, "")
        super().__init__(**stated | {key: laid[key] for key in plain_values})

    # Pydantic's mark of an `__init__` that adds no values to those of `read`.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    @plugins.cached
    def default_values(cls) -> dict[str, Any]:
        """Return the plain values of all keys that have a default in the class."""
        return {
            key: plain(field.default)
            for key, field in fields_of(cls).items()
            if not field.is_required()
        }

    def model_post_init(self, _: Any) -> None:
        """Check the rules of all parts, and those of the run as a whole."""
        rows = [
            (part, rule) for part in self.components for rule in rules_of(type(part))
        ]
        check_rules(rows, self)
        self.check()

    def check(self) -> None:
        """Check the rules of the run as a whole.

        Raises:
            BenchError: a rule is violated.
        """
        raise NotImplementedError

    @functools.cached_property
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
            if is_section(type(getattr(self, key)))
            for component in sections_within(getattr(self, key))
        )

    @functools.cached_property
    def client_data(self) -> str:
        """Kind of data that clients hold: "tasks" (few-shot) or "records"."""
        return self.client_update.client_data if self.trained else "tasks"

    def sums(self) -> list[SumSpec]:
        """Return all sums of a round; see `Method.sums`."""
        raise NotImplementedError

    @functools.cached_property
    def all_sums(self) -> tuple[SumSpec, ...]:
        """Sums of a round, which `sums` returns, computed once."""
        return tuple(self.sums())

    @functools.cached_property
    def client_sums(self) -> list[SumSpec]:
        """Sums that each client takes over its own records."""
        return [sum_ for sum_ in self.all_sums if sum_.taken_by == "client"]

    @functools.cached_property
    def server_sum(self) -> SumSpec:
        """Sum by which the server moves the model."""
        return self.all_sums[-1]

    @functools.cached_property
    def further_sums(self) -> list[SumSpec]:
        """The server's sums of further messages."""
        return [sum_ for sum_ in self.all_sums[:-1] if sum_.taken_by == "server"]

    @functools.cached_property
    def private_sums(self) -> list[SumSpec]:
        """Sums that are clipped and noised, in the order of `sums`."""
        return [sum_ for sum_ in self.all_sums if sum_.private]

    @functools.cached_property
    def within_task_sums(self) -> list[SumSpec]:
        """Private sums of each client's own records whose noise `within_task` sets."""
        return [sum_ for sum_ in self.private_sums if sum_.within_task is not None]

    @functools.cached_property
    def private(self) -> bool:
        """Whether the run claims privacy."""
        return bool(self.private_sums)

    @property
    def client_origin(self) -> str:
        """Who the clients are: "owner" or "synthetic" (`PartitionScheme.origin_of`)."""
        return "owner" if self.task.text is not None else self.clients.origin()

    @property
    def plan(self) -> Participation:
        """Participation plan of the run's clients."""
        return self.participation.plan(
            clients=self.clients.count, seed=self.stream_seed
        )

    @property
    def counted_claims(self) -> Claims:
        """Accounting of the method's paper, for the paper's number of clients."""
        for sum_ in self.all_sums:
            clients = getattr(sum_.budget, "counted_clients", None)
            if clients is not None:
                return counting_clients(self.claims, clients)
        return self.claims

    @property
    def delta(self) -> float | None:
        """δ at which ε is reported: that of the server's sum, else that of the clients'
        own sums; None without privacy.
        """
        sums = self.private_sums
        return sums[-1].delta if sums else None

    @property
    def own_delta(self) -> float | None:
        """δ at which the ε of the clients' own sums is reported; None without them.

        It is the server's δ where the server's sum protects the same unit, because the
        two values of ε are compared.
        """
        if not self.within_task_sums:
            return None
        first = self.within_task_sums[0]
        budgeted = [sum_ for sum_ in self.all_sums if sum_.budget is not None]
        same_unit = [sum_ for sum_ in budgeted if sum_.unit == first.unit]
        return (*same_unit, first)[0].delta

    @functools.cached_property
    def references(self) -> dict[str, Run]:
        """Other runs whose files this run needs, by the file's name in their folder."""
        runs: dict[str, Run] = {}
        for component in self.components:
            if not states(type(component), "references"):
                continue
            for name, run in component.references(self).items():
                if runs.setdefault(name, run) != run:
                    raise BenchError(
                        f"this run needs {name} of two runs, {runs[name].folder} and"
                        f" {run.folder}, but no account composes both: use only one of"
                        " them"
                    )
        return runs

    @property
    def network_references(self) -> dict[str, Run]:
        """Other runs whose files the network is made of, by the file's name."""
        references: dict[str, Run] = {}
        for section in sections_within(self.model):
            if states(type(section), "references"):
                references |= section.references(self)
        return references

    @staticmethod
    def another(values: Mapping[str, Any]) -> Run:
        """Return the run of plain values, which include `method`.

        Raises:
            BenchError: there is no such run.
        """
        return method_of(values).of_identity(values)

    def of_method(self, name: str) -> Run:
        """Return the run of another method with the same values for shared settings."""
        method = self.known[name]
        shared = {
            key: value
            for key, value in self
            if key in method.model_fields and key != "method"
        }
        return method(method=name, **shared)

    @functools.cached_property
    def computes_within_records(self) -> bool:
        """Whether few-shot clients compute each example's gradient from it alone."""
        if not self.trained or self.client_data != "tasks":
            return False
        update = self.client_update
        if update.by_record or any(sum_.unit == "record" for sum_ in self.client_sums):
            return True
        return self.model.record_level and not update.mixes_records

    def trained_net(
        self,
        image_shape: tuple[int, ...],
        classes: int,
        files: Mapping[str, Path] | None = None,
    ) -> Any:
        """Return the model that the run trains, a `models.net.Net`.

        Args:
            image_shape: shape of one input of the data set.
            classes: number of training classes; a pre-trained model has one output for
                each.
            files: files of other runs, by name (`references`).

        Raises:
            BenchError: a file that the model needs is missing or damaged.
        """
        outputs = classes if self.pretrains else self.task.outputs
        model = self.model.resolved(files or {})
        net = model.net(input_shape=image_shape, outputs=outputs)
        return self.client_update.net(net) if self.trained else net

    def tested_net(self, image_shape: tuple[int, ...]) -> Any:
        """Return the model that the meta-test adapts to its tasks."""
        net = self.model.net(input_shape=image_shape, outputs=self.task.outputs)
        is_trained_net = self.trained and not self.pretrains
        return self.client_update.net(net) if is_trained_net else net

    def adapted_tensors(self, net: Any) -> Sequence[str] | None:
        """Return the tensors that adaptation to a task changes; None: all."""
        if not self.trained or self.pretrains:
            return None
        return self.client_update.adapted(net)

    @property
    def shares_all(self) -> bool:
        """Whether clients share all coordinates of the model with the server."""
        by_mask = type(self).shared_mask is not Run.shared_mask
        return not by_mask and self.shared in ("all", ("all",), ["all"])

    def with_seed(self, seed: int) -> Self:
        """Return the run of the same settings with another seed.

        It is not checked again: rules are about settings, and none reads the seed.

        Raises:
            BenchError: the seed is out of bounds.
        """
        fault = value_fault(Run, "seed", seed, "seed")
        if fault:
            raise BenchError(fault)
        copied = self.model_copy(update={"seed": seed})
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]  # a computed value, which may depend on the seed
        copied.__dict__["key"] = self.key
        return copied

    def shared_mask(self, net: Any) -> np.ndarray | None:
        """Return the coordinates that clients share, bool [d]; None: all.

        Override this in a method whose shared coordinates are not whole tensors.

        Args:
            net: the model (`models.net.Net`).
        """
        names = (self.shared,) if isinstance(self.shared, str) else self.shared
        if tuple(names) == ("all",):
            return None
        return net.mask(*names)

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
                "test is for meta-tests, but this run's model is used without"
                " adaptation: leave it out"
            )
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

    def identity(self) -> dict[str, Any]:
        """Return the values that differ from neutral ones, and all parts' kinds.

        Neutral are the defaults of `Run` and of a family's base, and of the first
        part that the type of a method's own key names. The values that a method's class
        states are not: so the correction of one of them changes the keys of its runs.
        """
        values: dict[str, Any] = {}
        for key in fields_of(type(self)):
            value = getattr(self, key)
            if value != _neutral_value(type(self), key):
                is_inner = is_section(type(value))
                values[key] = differing_values(value) if is_inner else plain(value)
        return values

    @classmethod
    def of_identity(cls, values: Mapping[str, Any]) -> Self:
        """Return the run with this identity; see `identity`.

        Raises:
            BenchError: a value is missing, unknown or out of bounds.
        """
        neutral = {key: _neutral_value(cls, key) for key in fields_of(cls)}
        known = {key: value for key, value in neutral.items() if value is not _NONE}
        return cls.read({**known, **values})

    @functools.cached_property
    def key(self) -> str:
        """Identity of the run: a hash of all non-default settings, without the seed.

        A setting that is added later does not change the key of a run, if its default
        keeps the run's behaviour.
        """
        values = {key: value for key, value in self.identity().items() if key != "seed"}
        return _digest(values)

    @functools.cached_property
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
    def made_by(self) -> str:
        """Identity of the code that results depend on, besides the settings.

        It consists of the method's version, a hash of the network's file, and hashes of
        the files that define the classes of the method and its parts, where they are
        not files of dpfedbench.
        """
        plugin_digest = digest_classes(
            type(component) for component in (self, *self.components)
        )
        return " ".join(filter(None, (self.version, self.model.text, plugin_digest)))

    @functools.cached_property
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

    @property
    def features_folder(self) -> str | None:
        """Folder of the model's input features below results/features, or None.

        One job computes these features for all runs that need the same ones.
        """
        inputs = self.model.made_once(self)
        if inputs is None:
            return None
        return f"{self.dataset}/{_digest(inputs)}"

    def to_yaml(self) -> str:
        """Return the text of config.yaml.

        `read` creates an equal run from the values that `read_yaml` returns for it.
        """
        return yaml.safe_dump(self.plain(), sort_keys=False)


def check_rules(rows: Iterable[tuple[Any, Rule]], run: Any) -> None:
    """Refuse a run that breaks a rule of one of its parts.

    Args:
        rows: the parts, each with a rule.
        run: the run.

    Raises:
        BenchError: the message of the first broken rule.
    """
    for part, rule in rows:
        fault = rule.fault_of(part, run)
        if fault:
            raise BenchError(rule.message.format(part=part, run=run, fault=fault))


_NONE: Any = object()
"""Placeholder for a neutral value that does not exist."""


@functools.cache
def _neutral_value(cls: type[Run], key: str) -> Any:
    """Return the value of a key that identities of runs leave out; see `identity`."""
    if key in cls.neutral:
        return cls.neutral[key]
    if key in Run.model_fields:
        return _default_of(Run, key)
    for base in cls.__mro__:
        if key not in inspect.get_annotations(base):
            continue
        if vars(base).get("family"):
            return _default_of(base, key)
        part = next(iter(keys_of(base)[key].bases), None)
        if part is not None and not (is_part(part) and kind_of(part) is None):
            return part()
    return _NONE


def _default_of(cls: type[Run], key: str) -> Any:
    field = fields_of(cls)[key]
    return _NONE if field.is_required() else field.default


def _digest(values: Mapping[str, Any]) -> str:
    canonical = json.dumps(
        values, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def sections_within(section: Any) -> Iterator[Any]:
    """Yield a section and the sections in it."""
    yield section
    for key in fields_of(type(section)):
        inner = getattr(section, key)
        if is_section(type(inner)):
            yield from sections_within(inner)


def read_run(values: Mapping[str, Any]) -> Run:
    """Return a run from plain values, which include `method`.

    Raises:
        BenchError: an unknown method, or values that do not fit it.
    """
    return method_of(values).read(values)


def method_of(values: Mapping[str, Any]) -> type[Run]:
    """Return the class of the method that the plain values of a run name.

    Raises:
        BenchError: an unknown method.
    """
    name = values.get("method")
    if not isinstance(name, str) or name not in Run.known:
        raise BenchError(
            f"method is {name!r}: no method has this name, the nearest is"
            f" {nearest(str(name), Run.known)!r}; a method of your own is in a"
            " module that plugins lists"
        )
    return Run.known[name]


def read_run_file(path: Path | str) -> Run:
    """Return a run from the config.yaml in its folder.

    Raises:
        BenchError: the file is missing or damaged, holds a bad value, or belongs to
            another
            run: its values determine the name of the folder.
    """
    run = read_run(read_yaml(path))
    folder = Path(path).resolve().parent
    if folder.parts[-5:] != Path(run.folder).parts:
        raise BenchError(
            f"{path} is in the wrong folder: its values belong to {run.folder}:"
            f" {mend(Path(path), 'configure')}"
        )
    return run


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the plain values of a run's config.yaml.

    Raises:
        BenchError: the file is missing or is not YAML.
    """
    return load_yaml(text_of(path), str(path))
