"""What a run is: its configuration, checked; its identity; its place under results/.

A configuration is made by laying overlays over one another (`merge`), checked against the schemas in
workflow/schemas (`check`), and held as a `RunConfig`, which cannot exist with a value out of bounds.
"""

import contextlib
import copy
import dataclasses
import difflib
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import yaml

from dpfedbench.errors import BenchError

_PACKAGE = Path(__file__).resolve().parent
_GIVEN = ("method", "seed")
_SCHEMA_FOLDERS = (_PACKAGE / "schemas", _PACKAGE.parents[1] / "workflow" / "schemas")


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """The schema "run" or "config"; the latter has the run schema without required keys as its overlay."""
    for folder in _SCHEMA_FOLDERS:
        path = folder / f"{name}.schema.yaml"
        if path.exists():
            found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
            break
    else:
        raise BenchError(f"{name}.schema.yaml is missing from {_SCHEMA_FOLDERS[-1]}: restore it from the repository")
    if name == "config":
        overlay = _without_required(schema("run"))
        # These two come from a series and from the seed list; in an overlay they would be silently lost.
        overlay["properties"] = {key: rules for key, rules in overlay["properties"].items() if key not in _GIVEN}
        found["$defs"]["overlay"] = overlay
    return found


def _without_required(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_required(item) for key, item in value.items() if key not in ("required", "$schema")}
    return value


def merge(*layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Lay later mappings over earlier ones, key by key; any other value replaces what was there."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in (layer or {}).items():
            below = merged.get(key)
            if isinstance(value, Mapping):
                merged[key] = merge(below if isinstance(below, Mapping) else None, value)
            else:
                merged[key] = copy.deepcopy(value)
    return merged


def set_key(overlay: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """A copy of `overlay` with the value at a dotted key, e.g. "clipping.percentile"."""
    nested: Any = value
    for name in reversed(dotted.split(".")):
        nested = {name: nested}
    return merge(overlay, nested)


def typed(value: Any, rules: Mapping[str, Any] | None = None) -> Any:
    """A configuration in which text stands for text only.

    Snakemake's `--config` hands nested values over as text, and YAML reads 1e-6 as text: where the schema
    wants a number, a truth value or null, such text is read as one. What cannot be is left for `check`.

    Args:
        value: the configuration, or a part of it.
        rules: the schema of that part; by default that of the whole configuration.
    """
    whole = schema("config")
    rules = whole if rules is None else rules
    if "$ref" in rules:
        rules = whole["$defs"][rules["$ref"].rpartition("/")[2]]
    if isinstance(value, Mapping):
        named, others = rules.get("properties", {}), rules.get("additionalProperties")
        others = others if isinstance(others, Mapping) else {}
        return {key: typed(item, named.get(key, others)) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item, rules.get("items", {})) for item in value]
    kinds = _as_list(rules.get("type"))
    if isinstance(value, str) and kinds and ("string" not in kinds or (value == "null" and "null" in kinds)):
        with contextlib.suppress(ValueError):
            return json.loads(value.lower())
    return value


def leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found |= leaves(item, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = item
    return found


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None where there is none at all."""
    return next(iter(difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.0)), None)


def check(value: Any, against: Mapping[str, Any], where: str = "") -> None:
    """Check a configuration against a schema.

    Args:
        value: the configuration, or a part of it.
        against: a JSON schema.
        where: the dotted key at which `value` stands, for the message.

    Raises:
        BenchError: the first violation: unknown keys before others, then by place. It names the full dotted
            key, and the nearest valid key or what was expected.
    """
    errors = list(jsonschema.Draft202012Validator(against).iter_errors(value))
    if errors:
        errors.sort(key=lambda error: (error.validator != "additionalProperties", error.json_path))
        raise BenchError(_message(errors[0], where))
    for key, item in leaves(value if isinstance(value, Mapping) else {}).items():
        # A comparison with NaN is never true, so a schema's bounds let it through.
        if isinstance(item, float) and not math.isfinite(item):
            raise BenchError(f"{_dotted(where, key)} is {item}: expected a finite number")


def _dotted(*parts: object) -> str:
    return ".".join(str(part) for part in parts if str(part))


def _message(error: jsonschema.ValidationError, where: str) -> str:
    place = _dotted(where, *error.absolute_path)
    rules: Any = error.schema
    found: Any = error.instance
    if error.validator == "additionalProperties" and isinstance(rules["additionalProperties"], bool):
        siblings = rules["properties"]
        unknown = sorted(str(key) for key in found if key not in siblings)[0]
        return f"unknown key {_dotted(place, unknown)}: {_suggestion(unknown, place, siblings)}"
    if error.validator == "required":
        missing = next(key for key in rules["required"] if key not in found)
        return f"{_dotted(place, missing)} is missing: {', '.join(rules['required'])} are needed there"
    if error.validator == "pattern" and "propertyNames" in list(error.absolute_schema_path):
        return f"{place} has a part named {found!r}: use lower-case letters, digits and hyphens"
    if error.validator in ("minItems", "minProperties"):
        return f"{place} is empty: give at least one"
    return f"{place} is {_shown(found)}: expected {_expected(rules)}"


def _suggestion(unknown: str, place: str, siblings: Iterable[str]) -> str:
    if difflib.get_close_matches(unknown, list(siblings), n=1, cutoff=0.6):
        return f"did you mean {_dotted(place, nearest(unknown, siblings))}?"
    sections = schema("run")["properties"]
    for section, rules in sections.items():
        if unknown in rules.get("properties", {}) and section in siblings:
            return f"did you mean {_dotted(place, section, unknown)}?"
    return f"the nearest valid key is {_dotted(place, nearest(unknown, siblings))}"


def _expected(rules: Mapping[str, Any]) -> str:
    if "enum" in rules:
        return "one of " + ", ".join(str(item) for item in rules["enum"])
    kinds = _as_list(rules.get("type"))
    names = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "text",
        "array": "a list",
        "object": "a group of keys",
        "null": "null",
    }
    bounds = {
        "exclusiveMinimum": "above",
        "minimum": "at least",
        "exclusiveMaximum": "below",
        "maximum": "at most",
    }
    text = " or ".join(names[kind] for kind in sorted(kinds, key=lambda kind: kind == "null"))
    limits = [f"{word} {rules[key]}" for key, word in bounds.items() if key in rules]
    if limits:
        text = text.replace("number", "number " + " and ".join(limits), 1)
    if "pattern" in rules:
        text += " of lower-case letters, digits and hyphens"
    if rules.get("uniqueItems"):
        text += " without repeats"
    if "maxItems" in rules:
        text += f" of {rules['maxItems']}"
    return text or "another value"


def _as_list(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds or [])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


class _Section:
    """A part of a run; it checks itself against its part of the schema."""

    SECTION: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the bounds, and bring numbers to one type, so that 1 and 1.0 are one run."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        rules = schema("run")["properties"][self.SECTION]
        check(values, rules, self.SECTION)
        for key, value in values.items():
            kinds = _as_list(rules["properties"][key].get("type"))
            if value is not None and not isinstance(value, bool):
                if "number" in kinds:
                    object.__setattr__(self, key, float(value))
                elif "integer" in kinds:
                    object.__setattr__(self, key, int(value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(_Section):
    """What the model is used for: telling `ways` classes apart, from `shots` examples of each; 0: as it is."""

    SECTION: ClassVar[str] = "task"
    ways: int
    shots: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientsConfig(_Section):
    """The clients of the federation and what each holds.

    `partition` "shared" lets two clients hold the same image, as in the papers; "disjoint" does not.
    "fragments" deals out all records, sorted by label and cut into `fragments`; the other sizes are then unused.
    """

    SECTION: ClassVar[str] = "clients"
    count: int
    examples_per_class: int
    support_per_class: int
    query_per_class: int
    partition: str
    fragments: int | None

    def __post_init__(self) -> None:
        """Refuse a client that would need more than it holds, and fragments that cannot be dealt out."""
        super().__post_init__()
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(_Section):
    """The network: conv4 is four blocks of `filters` 3x3 convolutions; cnn is Adap DP-FL's, of fixed size.

    `normalisation` of conv4: "batch" is over a task's images; "record" is within each image, so that no image's
    gradient depends on another. cnn has none; its input is (pixel - `pixel_mean`) / `pixel_deviation`, constants.
    """

    SECTION: ClassVar[str] = "model"
    name: str
    filters: int
    normalisation: str
    pixel_mean: float
    pixel_deviation: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationConfig(_Section):
    """Which clients take part in a round: `cohort` is L, its expectation where it is random.

    "poisson-lots": every client takes part in every round, with a Poisson lot of `cohort` of its records expected.
    """

    SECTION: ClassVar[str] = "participation"
    kind: str
    cohort: int
    rounds: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientUpdateConfig(_Section):
    """What a client computes.

    "maml": the query gradient after `inner_steps` steps; order 1 is first order. "reptile": the model it got less the
    model that many steps of its `optimizer` on all of its examples make of it. "local-steps": that many steps of
    its `optimizer`, each along the sum of a lot; `keep_state` keeps the optimiser's moments from round to round.
    "model-difference": the model it got less the model that many steps make of it, each on all of its records.
    `learnable_rates` and `multi_step_rounds` are MAML++'s (`federation.composition.Maml`), for "maml" alone.
    """

    SECTION: ClassVar[str] = "client_update"
    kind: str
    inner_steps: int
    inner_rate: float
    order: int
    optimizer: str
    keep_state: bool
    learnable_rates: bool
    multi_step_rounds: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig(_Section):
    """The private sums that a few-shot client takes over its own examples: record-level privacy within its task.

    `threshold` is C_0, `multiplier` z_0; null means the smallest z_0 with which an example's epsilon, under `profile`,
    is at most `epsilon` at `delta`. `query` says who noises the query examples' gradients: the "client", for a server
    that is not trusted (DP-AGRLR), or the trusted "server" in one sum over all of a cohort (sample-level DP-MAML).
    `batches`: each step reads all examples ("full"), or each example is in one step ("disjoint", Reptile's).
    """

    SECTION: ClassVar[str] = "local"
    threshold: float
    multiplier: float | None
    epsilon: float | None
    delta: float
    profile: str
    query: str
    batches: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippingConfig(_Section):
    """How the threshold C moves.

    The percentile rules take the `percentile` of the norms seen in the last `window` rounds; `form` says
    whether a release's norm is that of the sum or of the mean. `never_rising` keeps C from going up.
    The rules of Adap DP-FL take `factor` times a mean norm; `threshold` null is then found on random data.
    "median-of-run" keeps the median norm of the same run without privacy (`RunConfig.reference`); `threshold` is null.
    "private-quantile" goes to the percentile by steps of `quantile_rate`, on a count with `count_noise` (null: L/20).
    """

    SECTION: ClassVar[str] = "clipping"
    rule: str
    threshold: float | None
    percentile: float
    window: int
    form: str
    never_rising: bool
    factor: float
    quantile_rate: float
    count_noise: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseConfig(_Section):
    """The noise multiplier z; null means the smallest z that meets the budget.

    After `falls` falls in a row of the public validation loss, z is multiplied by `decay` (1: it stays).
    """

    SECTION: ClassVar[str] = "noise"
    multiplier: float | None
    decay: float
    falls: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetConfig(_Section):
    """The limit on privacy loss: `epsilon` null is no limit; `delta` is used for reporting all the same."""

    SECTION: ClassVar[str] = "budget"
    epsilon: float | None
    delta: float
    profile: str
    stop: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(_Section):
    """The optimiser that takes the (noised) mean gradient as a step, its rate, and its momentum if it is sgd.

    `schedule` "cosine" lets the rate fall to `final_rate` over the planned rounds.
    """

    SECTION: ClassVar[str] = "server"
    optimizer: str
    rate: float
    momentum: float
    schedule: str
    final_rate: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValidationConfig(_Section):
    """Validation every so many rounds (0: never), and how many of the best checkpoints are averaged.

    `tasks` are few-shot tasks, or records taken out of the test part. `public` says that nobody's privacy is at
    stake in them.
    """

    SECTION: ClassVar[str] = "validation"
    every: int
    tasks: int
    ensemble: int
    public: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(_Section):
    """The meta-test: fresh tasks of the test classes, and the steps a consumer of the meta-model takes.

    A model that is used as it is, is tested on the whole test part, less what validation took. `every`: rounds
    between tests in training, which tell how it went and change nothing (0: never; for such a model only).
    """

    SECTION: ClassVar[str] = "evaluation"
    every: int
    tasks: int
    query_per_class: int
    steps: int
    rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: a method, its whole configuration and a seed.

    A method that claims no privacy has `clipping`, `noise` and `budget` None; one that does has all three.

    Raises:
        BenchError: a value is out of bounds, or two values do not go together.
    """

    method: str
    seed: int
    dataset: str
    task: TaskConfig
    clients: ClientsConfig
    model: ModelConfig
    participation: ParticipationConfig
    client_update: ClientUpdateConfig
    local: LocalConfig | None
    clipping: ClippingConfig | None
    noise: NoiseConfig | None
    budget: BudgetConfig | None
    server: ServerConfig
    validation: ValidationConfig
    evaluation: EvaluationConfig

    def __post_init__(self) -> None:
        """Check the values that stand alone, then those that have to go together."""
        for field in ("method", "seed", "dataset"):
            check(getattr(self, field), schema("run")["properties"][field], field)
        self._check_privacy()
        self._check_participation()
        self._check_shape()
        self._check_record_level()

    def _check_privacy(self) -> None:
        given = [field for field in ("clipping", "noise", "budget") if getattr(self, field) is not None]
        if given and len(given) < 3:
            absent = next(field for field in ("clipping", "noise", "budget") if field not in given)
            raise BenchError(
                f"{absent} is null but {given[0]} is not: a private run needs all of clipping, noise, budget"
            )
        if self.noise and self.budget and self.noise.multiplier is None and self.budget.epsilon is None:
            raise BenchError("noise.multiplier and budget.epsilon are both null: give one, the other follows from it")

    def _check_participation(self) -> None:
        kind, cohort, rounds = self.participation.kind, self.participation.cohort, self.participation.rounds
        count = self.clients.count
        if cohort > count and kind != "poisson-lots":
            raise BenchError(
                f"participation.cohort is {cohort}, more than clients.count ({count}): lower it or raise that"
            )
        if kind in ("poisson", "poisson-lots"):
            return
        if count % cohort:
            raise BenchError(
                f"participation.cohort ({cohort}) does not divide clients.count ({count}), as {kind} needs: "
                f"try {max(size for size in range(1, cohort + 1) if count % size == 0)}"
            )
        if kind == "balls-and-bins" and rounds and cohort * rounds != count:
            raise BenchError(
                f"participation.cohort x participation.rounds is {cohort * rounds}, but balls-and-bins needs the "
                f"{count} clients of clients.count exactly: try {count // cohort} rounds"
            )
        if cohort * rounds > count:
            raise BenchError(
                f"participation.rounds is {rounds}, but {count} clients in cohorts of {cohort} last for "
                f"{count // cohort} rounds of {kind}: lower rounds or raise clients.count"
            )

    @property
    def by_record(self) -> bool:
        """Whether each client sums over its own records (cross-silo), not the server over its clients."""
        return self.client_update.kind == "local-steps"

    @property
    def on_records(self) -> bool:
        """Whether clients hold labelled records, and not few-shot tasks."""
        return self.by_record or self.client_update.kind == "model-difference"

    @property
    def pretrains(self) -> bool:
        """Whether records of all training classes are told apart first, and the body is then adapted to few-shot tasks.

        A model trained on records is else used as it is.
        """
        return self.by_record and self.model.name == "conv4" and self.task.shots > 0

    def _check_shape(self) -> None:
        """The values that the places of the private sum, server and client, and kinds of data need to have."""
        silos, records = "local-steps", "local-steps and model-difference"
        as_it_is = self.on_records and not self.pretrains
        wanted: dict[str, tuple[Any, Any, str, bool]] = {
            "participation.kind": (self.participation.kind, "poisson-lots", silos, self.by_record),
            "clients.partition": (self.clients.partition, "fragments", records, self.on_records),
            "model.name": (self.model.name, "cnn", records, as_it_is),
            "server.optimizer": (self.server.optimizer, "average", silos, self.by_record),
            "task.shots": (self.task.shots, 0, records, as_it_is),
        }
        for key, (value, needed, kinds, belongs) in wanted.items():
            if (value == needed) != belongs:
                raise BenchError(
                    f"{key} is {value}, which does not go with client_update.kind {self.client_update.kind}: "
                    f"{needed} and {kinds} belong together"
                )
        if not as_it_is and (self.model.pixel_mean, self.model.pixel_deviation) != (0.0, 1.0):
            raise BenchError("model.pixel_mean and pixel_deviation are for cnn: conv4 normalises by itself")
        if self.pretrains and (self.validation.every or self.evaluation.every):
            raise BenchError(
                "validation.every and evaluation.every are for models that are used as they are: set both to 0 for "
                "a model whose last layer is replaced"
            )
        if self.server.momentum and self.server.optimizer != "sgd":
            raise BenchError(f"server.momentum is {self.server.momentum:g}: only server.optimizer sgd has one")
        self._check_schedule()
        clipping, noise = self.clipping, self.noise
        if clipping is None or noise is None:
            return
        own = clipping.rule in ("noised-mean-norm", "norm-of-release", "mean-of-raw-norms")
        if own and not self.by_record:
            raise BenchError(f"clipping.rule {clipping.rule} is for client_update.kind local-steps")
        if self.by_record and not (own or clipping.rule == "constant"):
            raise BenchError(
                f"clipping.rule is {clipping.rule}: local-steps has constant, "
                "noised-mean-norm, norm-of-release and mean-of-raw-norms"
            )
        if clipping.rule == "median-of-run" and self.client_update.kind != "maml":
            raise BenchError("clipping.rule median-of-run is for client_update.kind maml")
        if clipping.rule == "median-of-run" and clipping.threshold is not None:
            raise BenchError(
                f"clipping.threshold is {clipping.threshold:g}, but median-of-run finds it in a run without privacy: "
                "set it to null"
            )
        if clipping.threshold is None and not own and clipping.rule != "median-of-run":
            raise BenchError(f"clipping.threshold is null: the rule {clipping.rule} needs a first threshold")
        if clipping.rule == "private-quantile" and noise.multiplier is not None:
            deviation = self.participation.cohort / 20 if clipping.count_noise is None else clipping.count_noise
            if not 2 * deviation > noise.multiplier:
                given = "null, so a twentieth of the cohort, " if clipping.count_noise is None else ""
                raise BenchError(
                    f"clipping.count_noise is {given}{deviation:g}: private-quantile needs more than half of "
                    f"noise.multiplier ({noise.multiplier:g}), or the count alone costs all that may be spent"
                )
        if clipping.rule == "noised-mean-norm" and noise.multiplier is None:
            raise BenchError(
                "noise.multiplier is null, but noised-mean-norm is a release more a lot: give a multiplier"
            )
        if noise.decay < 1:
            if not self.by_record:
                raise BenchError("noise.decay is below 1: only client_update.kind local-steps has decaying noise")
            if not self.validation.public:
                raise BenchError(
                    "validation.public is false, but its loss drives the noise (noise.decay below 1): what it tells "
                    "of private records is in no account; take public records, or set noise.decay to 1"
                )
            if not self.validation.every:
                raise BenchError("noise.decay is below 1, but validation.every is 0: set it to 1")
            if noise.multiplier is None:
                raise BenchError("noise.multiplier is null, but noise that decays needs a first value: give one")

    def _check_schedule(self) -> None:
        server = self.server
        if (server.schedule == "cosine") != (server.final_rate is not None):
            shown = "null" if server.final_rate is None else f"{server.final_rate:g}"
            raise BenchError(
                f"server.final_rate is {shown} with server.schedule {server.schedule}: cosine needs one, "
                "and constant has none"
            )
        if server.schedule == "cosine" and self.by_record:
            raise BenchError("server.schedule cosine is for servers that take steps: local-steps averages models")
        if server.final_rate is not None and server.final_rate > server.rate:
            raise BenchError(
                f"server.final_rate is {server.final_rate:g}, above server.rate ({server.rate:g}): it may only fall"
            )

    @property
    def takes_gpu(self) -> bool:
        """Whether its training can use a GPU; the passes for gradients of single records are compiled for the CPU."""
        return not (self.on_records or self.within_records)

    @property
    def within_records(self) -> bool:
        """Whether few-shot clients compute each example's gradient by itself, from that example alone."""
        return not self.on_records and self.model.normalisation == "record"

    def _check_record_level(self) -> None:
        """What privacy of single examples within a task needs, and what is told in its place."""
        update, local = self.client_update, self.local
        if self.pretrains:
            if self.model.normalisation != "record":
                raise BenchError(
                    "model.normalisation is batch, but local-steps takes records one by one, and a batch's statistics "
                    "tie a record's gradient to the others: set it to record"
                )
            if local is not None:
                raise BenchError("local is for few-shot clients, not for local-steps: set it to null")
            return
        if self.on_records and (local is not None or self.model.normalisation != "batch"):
            raise BenchError(f"local and model.normalisation are for few-shot clients, not for {update.kind}")
        if update.kind == "reptile" and not self.within_records:
            raise BenchError("client_update.kind reptile takes examples one by one: set model.normalisation to record")
        if (update.learnable_rates or update.multi_step_rounds) and (update.kind != "maml" or self.within_records):
            raise BenchError(
                "client_update.learnable_rates and multi_step_rounds are for kind maml with model.normalisation batch: "
                "set them to false and 0"
            )
        if self.within_records and update.kind == "maml" and update.order == 2:
            raise BenchError(
                "client_update.order is 2, but model.normalisation is record: the second order carries the support "
                "set's Hessian into every query gradient, which no record-level noise covers; set order to 1"
            )
        if local is None:
            return
        if not self.within_records:
            raise BenchError(
                "local privacy is for single examples, but model.normalisation is batch: its statistics tie an "
                "example's gradient to the others; set it to record"
            )
        if local.multiplier is None and local.epsilon is None:
            raise BenchError("local.multiplier and local.epsilon are both null: give one")
        if self.participation.kind == "poisson":
            raise BenchError(
                "participation.kind is poisson, but local accounts for one participation of a client: use one-pass "
                "or balls-and-bins"
            )
        if local.query == "server" and (update.kind != "maml" or self.clipping is None):
            raise BenchError("local.query is server: that is for maml with clipping, noise and budget of the server")
        if local.batches == "disjoint":
            if update.kind != "reptile":
                raise BenchError("local.batches is disjoint: only client_update.kind reptile has such batches")
            examples = self.task.ways * (self.clients.support_per_class + self.clients.query_per_class)
            if examples % update.inner_steps:
                raise BenchError(
                    f"client_update.inner_steps ({update.inner_steps}) does not divide a client's {examples} examples "
                    "into disjoint batches: change one of them"
                )
        if update.kind == "reptile" and self.clipping is not None:
            raise BenchError("reptile with local has no private sum of the server: set clipping, noise, budget to null")

    @property
    def private(self) -> bool:
        """Whether the run claims privacy."""
        return self.noise is not None or self.local is not None

    @property
    def delta(self) -> float | None:
        """At which epsilon is given: the budget's, or that of the clients' own sums; None without privacy."""
        if self.budget is not None:
            return self.budget.delta
        return None if self.local is None else self.local.delta

    @property
    def reference(self) -> "RunConfig | None":
        """The run without privacy in whose history this one finds its threshold; equal in all but what privacy takes.

        None where no such run is needed.
        """
        if self.clipping is None or self.clipping.rule != "median-of-run":
            return None
        return dataclasses.replace(self, method="maml", clipping=None, noise=None, budget=None)

    def tested_at(self, *, shots: int | None = None, **evaluation: Any) -> "RunConfig":
        """The same run under another meta-test: what is trained is the same, so its folder stays this run's.

        Args:
            shots: in place of task.shots.
            evaluation: in place of values of `evaluation`.

        Raises:
            BenchError: the model is used as it is and has no meta-test, or a value is out of bounds.
        """
        if self.on_records and not self.pretrains:
            raise BenchError("test is a meta-test's, but this run's model is used as it is: leave it out")
        task = self.task if shots is None else dataclasses.replace(self.task, shots=shots)
        if not task.shots:
            raise BenchError("test.shots is 0: a meta-test adapts to at least 1")
        return dataclasses.replace(self, task=task, evaluation=dataclasses.replace(self.evaluation, **evaluation))

    @property
    def test_name(self) -> str:
        """What a meta-test is called in the run's folder; says all that `tested_at` may change."""
        test = self.evaluation
        return (
            f"{self.task.shots}shot-{test.steps}steps-{test.rate:g}rate-{test.tasks}tasks-{test.query_per_class}query"
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """What a reader of this run's privacy must be told: printed and written beside the result."""
        if not self.private:
            return ()
        said = ["simulated privacy: the noise seed is public"]
        if not self.by_record and self.budget is not None and self.budget.delta * self.clients.count >= 1:
            said.append(f"delta {self.budget.delta:g} is not below 1/{self.clients.count}, one over the clients")
        if self.clipping is not None and self.clipping.rule in ("percentile-of-raw-norms", "mean-of-raw-norms"):
            said.append("the clipping threshold reads raw norms: not private")
        if self.reference is not None:
            said.append("the clipping threshold is the median norm of a run without privacy: not private")
        if (self.model.pixel_mean, self.model.pixel_deviation) != (0.0, 1.0):
            said.append("pixels are normalised by published constants of the data set, which no account covers")
        if self.on_records and not self.pretrains:
            said.append(
                f"{self.validation.tasks} records of the test part are a public validation split; "
                "accuracy is on the rest"
            )
        return tuple(said)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Build a run from plain values.

        Raises:
            BenchError: an unknown, missing or ill-typed key, a value out of bounds.
        """
        check(values, schema("run"))
        parts = {
            field: _SECTIONS[field](**value) if isinstance(value, Mapping) else value for field, value in values.items()
        }
        return cls(**parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in config.yaml."""
        return dataclasses.asdict(self)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "RunConfig":
        """Read a run's config.yaml.

        Raises:
            BenchError: it is missing, is not YAML or holds a bad value.
        """
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise BenchError(f"{path} is missing: run the workflow again to make it") from error
        except yaml.YAMLError as error:
            raise BenchError(f"{path} is not valid YAML ({error}): delete it and run the workflow again") from error
        if not isinstance(values, Mapping):
            raise BenchError(f"{path} holds no configuration: delete it and run the workflow again")
        return cls.from_dict(values)

    def to_yaml(self) -> str:
        """The text of config.yaml; `from_yaml` reads it back to an equal run."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @functools.cached_property
    def key(self) -> str:
        """The run's identity: equal for equal configurations, seed aside; another for any changed value."""
        values = {key: value for key, value in self.to_dict().items() if key != "seed"}
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:10]

    @property
    def task_name(self) -> str:
        """For people, e.g. "5-way 1-shot"."""
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


_SECTIONS: dict[str, Any] = {
    section.SECTION: section
    for section in (
        TaskConfig,
        ClientsConfig,
        ModelConfig,
        ParticipationConfig,
        ClientUpdateConfig,
        LocalConfig,
        ClippingConfig,
        NoiseConfig,
        BudgetConfig,
        ServerConfig,
        ValidationConfig,
        EvaluationConfig,
    )
}
