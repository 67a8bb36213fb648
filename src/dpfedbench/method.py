"""Base class of methods. A method is a run: its settings, with its parts as fields, its
sums, and the run's identity and folder under results/.

The types of a method's fields say which parts it accepts. A configuration with other
parts is refused. `claims` is the accounting of the method's paper, if the paper has
one.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import yaml

from dpfedbench import plugins
from dpfedbench.config.breach import Breach
from dpfedbench.config.kinds import is_part, is_section, kind_of
from dpfedbench.config.merge import lay
from dpfedbench.config.messages import LOWER_CASE, nearest
from dpfedbench.config.part import (
    Section,
    Settings,
    differing_values,
    plain,
    setting,
)
from dpfedbench.config.plugin_sources import digest_classes
from dpfedbench.config.schema import fields_of, keys_of
from dpfedbench.config.sections import Evaluation, PartitionScheme, Task, Validation
from dpfedbench.config.yaml_files import load_yaml
from dpfedbench.errors import BenchError
from dpfedbench.files import text_of
from dpfedbench.lazy import np
from dpfedbench.manifests import mend
from dpfedbench.models.initial.initial_weights import Initial, RandomInitial
from dpfedbench.models.model_settings import ModelSettings
from dpfedbench.parts import compatibility
from dpfedbench.parts.clipping.reference import ReferenceRule
from dpfedbench.parts.proof_assumptions import check_plan
from dpsum.accounting.claims import Claims, counting_clients
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.net import Net
    from dpfedbench.parts.server.server_step import ServerStep
    from dpfedbench.training.client_updates.client_update import ClientUpdate
    from dpsum.clipping import ClippingRule
    from dpsum.noise import Noise
    from dpsum.participation import Participation


class Method(Settings):
    """Run of one method: all its settings, and a seed.

    Class attributes: `name` identifies the method in configurations and folders,
    `title` in tables. `paper` is the name of its paper's experiments. Raise `version`
    when results change: then the runs of this method, and of no other, are trained
    again. `defaults` override the values that the configuration gives to all methods.
    `trained` is false for a method that trains nothing; such a method has none of the
    parts below.

    A method that trains declares three parts by the types of its fields:
    `participation` (which clients take part in which round), `client_update` (what each
    client computes and sends) and `server` (the step that the server makes along the
    sum). `sums` lists all its sums, those of the server and those of each client.

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

    family: ClassVar[str] = ""
    """Name of a base of several methods: sections of a configuration may be for all of
    them. The defaults of such a base belong to no paper (`identity`).
    """
    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    defaults: ClassVar[dict[str, Any]] = {}
    released: ClassVar[dict[str, Any]] = {}
    """Settings of the authors' released code that differ from the paper's. Classes that
    extend this one do not inherit them.
    """
    neutral: ClassVar[Mapping[str, Any]] = {}
    """Values that the keys of runs leave out, where `identity` does not find them. Never
    change one: the keys of all runs that have it would change.
    """
    trained: ClassVar[bool] = True
    shared: ClassVar[str | Sequence[str]] = "all"
    """Tensors or modules of the network that clients share with the server, named as in
    `Net.mask`. With "body", clients keep the last layer. The server's sums, their
    clipping and noise, the ledger and the server's step cover these coordinates alone.
    """
    known: ClassVar[dict[str, type[Method]]] = {}
    """All methods by name; `dpfedbench.papers` fills it."""

    claims: ClassVar[Claims] = {}
    """Accounting of the method's paper, by sampler; empty if it claims no epsilon."""
    pretrains: ClassVar[bool] = False
    """Whether the model is first trained to classify records of all training classes,
    and its body then adapted to few-shot tasks.
    """

    if TYPE_CHECKING:  # each method declares its own types
        participation: Any
        client_update: Any
        server: ServerStep
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

    @classmethod
    def groups(cls) -> tuple[str, ...]:
        """Return the names under which sections of a configuration are for this method:
        "all", its families, and its own name; general ones first.
        """
        families = [vars(base).get("family", "") for base in reversed(cls.__mro__)]
        return ("all", *filter(None, families), cls.name)

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
        if self.trained:
            compatibility.check_parts(self)
            check_plan(self)
        compatibility.check_reading(self)

    @functools.cached_property
    def components(self) -> tuple[Any, ...]:
        """All sections and parts, including nested ones and those of `dpsum`.

        The method's own come first, then those of every run.
        """
        method_keys = [
            key for key in type(self).model_fields if key not in Method.model_fields
        ]
        return tuple(
            component
            for key in (*method_keys, *Method.model_fields)
            if is_section(type(getattr(self, key)))
            for component in _within(getattr(self, key))
        )

    @functools.cached_property
    def sections(self) -> tuple[Section, ...]:
        """Components that are sections, which may check the whole run."""
        return tuple(
            component for component in self.components if isinstance(component, Section)
        )

    @property
    def client(self) -> ClientUpdate:
        """The client update: what each client computes and sends."""
        update: ClientUpdate = self.client_update
        return update

    @property
    def client_data(self) -> str:
        """Kind of data that clients hold: "tasks" (few-shot) or "records"."""
        return self.client.client_data if self.trained else "tasks"

    def sums(self) -> list[SumSpec]:
        """Return all sums of a round: each client's, in their order, then the server's.

        Privacy, notices, budget and audit of the run follow from them. The server moves
        the model by its last sum. Its sums before the last are those of further
        messages, in the order in which clients send them.
        """
        return []

    @functools.cached_property
    def all_sums(self) -> tuple[SumSpec, ...]:
        """Sums of a round, which `sums` returns, computed once."""
        return tuple(self.sums())

    @property
    def client_sums(self) -> list[SumSpec]:
        """Sums that each client takes over its own records."""
        return [sum_ for sum_ in self.all_sums if sum_.taken_by == "client"]

    @property
    def server_sum(self) -> SumSpec:
        """Sum by which the server moves the model."""
        return self.all_sums[-1]

    @property
    def further_sums(self) -> list[SumSpec]:
        """The server's sums of further messages."""
        return [sum_ for sum_ in self.all_sums[:-1] if sum_.taken_by == "server"]

    @functools.cached_property
    def private_sums(self) -> list[SumSpec]:
        """Sums that are clipped and noised, in the order of `sums`."""
        return [sum_ for sum_ in self.all_sums if sum_.private]

    @property
    def private(self) -> bool:
        """Whether the run claims privacy."""
        return bool(self.private_sums)

    @property
    def plan(self) -> Participation:
        """Participation plan of the run's clients."""
        plan: Participation = self.participation.plan(
            clients=self.clients.count, seed=self.stream_seed
        )
        return plan

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
        client_sums = [sum_ for sum_ in self.private_sums if sum_.within_task]
        if not client_sums:
            return None
        budgeted = [sum_ for sum_ in self.all_sums if sum_.budget is not None]
        same_unit = [sum_ for sum_ in budgeted if sum_.unit == client_sums[0].unit]
        return (*same_unit, client_sums[0])[0].delta

    @property
    def accounts_images(self) -> bool:
        """Whether the account covers the level of an image.

        That level needs the partition, which says which clients use which image.
        """
        return self.private and self.client_data != "records"

    @property
    def within_records(self) -> bool:
        """Whether few-shot clients compute each example's gradient from it alone."""
        return self.trained and self.client.within_records(self)

    @functools.cached_property
    def unaccounted_releases(self) -> tuple[str, ...]:
        """Reasons why a result computed from private data before training is a release
        without an accounting event.
        """
        reasons = [
            reason
            for section in self.sections
            for reason in section.unaccounted_releases
        ]
        reasons += [
            f"the network is made of what {run.folder} found without privacy"
            for run in self.model.references(self).values()
            if not run.private
        ]
        reasons += self.initial.without_account(self)
        return tuple(dict.fromkeys(reasons))

    @functools.cached_property
    def breaches(self) -> tuple[Breach, ...]:
        """Releases of this run that no account covers; see `Breach`."""
        if not self.trained:
            return ()
        of_sections = [
            breach
            for section in self.sections
            for breach in section.breaches(self)  # type: ignore[arg-type]
        ]
        return (*of_sections, *self._coupled_records())

    @property
    def unaccounted_units(self) -> dict[str, tuple[str, ...]]:
        """Reasons of all breaches, by the unit whose guarantee they break."""
        reasons: dict[str, tuple[str, ...]] = {}
        for breach in self.breaches:
            reasons[breach.unit] = (*reasons.get(breach.unit, ()), breach.reason)
        return reasons

    def _coupled_records(self) -> tuple[Breach, ...]:
        """Return the breach of a model that mixes the records of a batch."""
        sums_records = any(sum_.unit == "record" for sum_ in self.all_sums)
        takes_records = self.client.by_record or sums_records
        if self.model.record_level or not takes_records:
            return ()
        breach = Breach(
            unit="record",
            refusal=(
                f"model {self.model.kind} ties a record's gradient to the others of its"
                f" batch, but {self.name} takes records one by one: set"
                f" {self.model.by_record}, or take another model"
            ),
            reason=(
                "normalisation over a batch puts each record into the gradients of the"
                " others, where clipping does not bound it"
            ),
        )
        return (breach,)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices about this run's privacy, printed and written beside the result."""
        if not self.private:
            return ()
        notices = ["simulated privacy: the noise seed is public"]
        server = self.all_sums[-1]
        notices += [
            sum_.clipping.notice
            for sum_ in self.all_sums
            if sum_.clipping is not None and sum_.clipping.notice
        ]
        if server.private and (server.delta or 0.0) * self.clients.count >= 1:
            notices.append(
                f"delta {server.delta:g} is not below 1/{self.clients.count}, one over"
                " the clients"
            )
        for section in self.sections:
            notices += section.notices(self)  # type: ignore[arg-type]
        notices += self.uncovered_notices
        if not self.task.shots:
            kind = "public validation" if self.validation.public else "validation"
            notices.append(
                f"{self.validation.tasks} records of the test part are a {kind} split;"
                " accuracy is on the rest"
            )
        return tuple(notices)

    @property
    def uncovered_notices(self) -> tuple[str, ...]:
        """Notices about published values that no account of this private run covers.

        They stand in privacy.json too, beside the account.
        """
        notices = []
        if self.private and self.clients.held_out_share:
            notices.append(
                "personal accuracies exist only in the simulation: they are measured"
                " on clients' own examples, no server sees them, and no account"
                " covers them"
            )
        if self.private and self.validation.every and not self.validation.public:
            notices.append(
                "validation.public is false: validation accuracies, and the checkpoints"
                " that they choose, read private validation data without noise, and no"
                " account covers them"
            )
        return tuple(notices)

    @property
    def references(self) -> dict[str, Method]:
        """Other runs whose files this run needs, by the file's name in their folder."""
        references = [
            (rule.reference_file, self._as(self.known[rule.reference]))
            for rule in (sum_.clipping for sum_ in self.all_sums)
            if isinstance(rule, ReferenceRule)
        ]
        references += self.model.references(self).items()
        references += self.initial.references(self).items()
        runs: dict[str, Method] = {}
        for name, run in references:
            if runs.setdefault(name, run) != run:
                raise BenchError(
                    f"this run needs {name} of two runs, {runs[name].folder} and"
                    f" {run.folder}, but no account composes both: use only one of"
                    " them"
                )
        return runs

    @staticmethod
    def another(values: Mapping[str, Any]) -> Method:
        """Return the run of plain values, which include `method`.

        Raises:
            BenchError: there is no such run.
        """
        return method_of(values).of_identity(values)

    def _as(self, method: type[Method]) -> Method:
        """Return the run of another method with the same values for shared settings."""
        shared = {
            key: value
            for key, value in self
            if key in method.model_fields and key != "method"
        }
        return method(method=method.name, **shared)

    def net(
        self,
        image_shape: tuple[int, ...],
        classes: int,
        files: Mapping[str, Path] | None = None,
    ) -> Net:
        """Return the model that is trained.

        Args:
            image_shape: shape of one input of the data set.
            classes: number of training classes; a pre-trained model has one output for
                each.
            files: files of other runs, by name (`references`).

        Raises:
            BenchError: a file that the model needs is missing or damaged.
        """
        outputs = classes if self.pretrains else self.task.outputs
        net = self.model.resolved(files or {}).net(
            input_shape=image_shape, outputs=outputs
        )
        return self.client.net(net) if self.trained else net

    def shared_mask(self, net: Net) -> np.ndarray | None:
        """Return the coordinates that clients share, bool [d]; None: all.

        Override this in a method whose shared coordinates are not whole tensors.
        """
        names = (self.shared,) if isinstance(self.shared, str) else self.shared
        if tuple(names) == ("all",):
            return None
        return net.mask(*names)

    @property
    def shares_all(self) -> bool:
        """Whether clients share all coordinates of the model with the server."""
        by_mask = type(self).shared_mask is not Method.shared_mask
        return not by_mask and self.shared in ("all", ("all",), ["all"])

    def tested_net(self, image_shape: tuple[int, ...]) -> Net:
        """Return the model that the meta-test adapts to its tasks."""
        net = self.model.net(input_shape=image_shape, outputs=self.task.outputs)
        return self.client.net(net) if self.trained and not self.pretrains else net

    def adapted(self, net: Net) -> Sequence[str] | None:
        """Return the tensors that adaptation to a task changes; None: all."""
        if self.trained and not self.pretrains:
            return self.client.adapted(net)
        return None

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

        Neutral are the defaults of `Method` and of a family's base, and of the first
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
        text: str = yaml.safe_dump(self.plain(), sort_keys=False)
        return text


_NONE: Any = object()
"""Placeholder for a neutral value that does not exist."""


@functools.cache
def _neutral_value(cls: type[Method], key: str) -> Any:
    """Return the value of a key that identities of runs leave out; see `identity`."""
    if key in cls.neutral:
        return cls.neutral[key]
    if key in Method.model_fields:
        return _default_of(Method, key)
    for base in cls.__mro__:
        if key not in inspect.get_annotations(base):
            continue
        if vars(base).get("family"):
            return _default_of(base, key)
        part = next(iter(keys_of(base)[key].bases), None)
        if part is not None and not (is_part(part) and kind_of(part) is None):
            return part()
    return _NONE


def _default_of(cls: type[Method], key: str) -> Any:
    field = fields_of(cls)[key]
    return _NONE if field.is_required() else field.default


def _digest(values: Mapping[str, Any]) -> str:
    canonical = json.dumps(
        values, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def _within(value: Any) -> Iterator[Any]:
    """Yield a section and the sections in it."""
    yield value
    for key in fields_of(type(value)):
        inner = getattr(value, key)
        if is_section(type(inner)):
            yield from _within(inner)


def read_run(values: Mapping[str, Any]) -> Method:
    """Return a run from plain values, which include `method`.

    Raises:
        BenchError: an unknown method, or values that do not fit it.
    """
    return method_of(values).read(values)


def method_of(values: Mapping[str, Any]) -> type[Method]:
    """Return the class of the method that the plain values of a run name.

    Raises:
        BenchError: an unknown method.
    """
    name = values.get("method")
    if not isinstance(name, str) or name not in Method.known:
        raise BenchError(
            f"method is {name!r}: no method has this name, the nearest is"
            f" {nearest(str(name), Method.known)!r}; a method of your own is in a"
            " module that plugins lists"
        )
    return Method.known[name]


def read_run_file(path: Path | str) -> Method:
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
