"""Classes of the configuration: the default run, overlays of presets, and the papers
with their tables and figures.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable
from dpfedbench.settings.messages import LONGEST_NAME, LOWER_CASE
from dpfedbench.settings.part import Settings, setting
from dpfedbench.settings.values import check_plain
from dpfedbench.settings.yaml_files import read_file

Overlay = Annotated[dict[str, Any], pydantic.WithJsonSchema({"title": "overlay"})]
"""Values of some keys of a run; which there may be, methods say
(`dpfedbench.settings.layers`).
"""

Name = Annotated[str, pydantic.Field(pattern=LOWER_CASE, max_length=LONGEST_NAME)]
"""Of what becomes a file or a folder."""

FOLDERS = (
    "audits",
    "clients",
    "data",
    "export",
    "features",
    "figures",
    "libraries",
    "logs",
    "manifest",
    "runs",
    "tables",
)
"""What the workflow makes below results/, where a preset's folder lies too."""


def _no_folder(name: str) -> str:
    if name in FOLDERS:
        raise ValueError(
            f"results/{name} is a folder of the workflow's own, choose another name"
        )
    return name


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("expected a list without repeats")
    return values


_some = pydantic.Field(min_length=1)
Seed = Annotated[int, pydantic.Field(ge=0, le=10**12)]
Seeds = Annotated[
    tuple[Seed, ...],
    pydantic.Field(min_length=1, max_length=1000),
    pydantic.AfterValidator(_each_once),
]
Numbers = Annotated[tuple[float, ...], _some, pydantic.AfterValidator(_each_once)]
Names = Annotated[tuple[str, ...], _some, pydantic.AfterValidator(_each_once)]


class Data(Settings):
    """Source of data sets."""

    local_dir: str | None = setting(
        None,
        doc=(
            "folder with archives, in place of a download; or set the variable"
            " DPFEDBENCH_DATA"
        ),
    )


class OwnDataset(Settings):
    """A data set of one's own: see docs/add-a-data-set.md."""

    reader: str = setting(
        pattern=LOWER_CASE, doc="the module of dpfedbench.data that reads it"
    )
    version: int = setting(
        1, ge=1, le=10**9, doc="of its content: raised when that changes"
    )
    source: str = setting("", doc="where it comes from")
    licence: str = setting("", doc="its terms")
    options: dict[str, Any] = setting({}, doc="what its reader is called with")


class Machine(Settings):
    """The machine. None of this is part of a run's identity, and no result depends on
    it but by rounding.
    """

    threads: int = setting(
        1,
        ge=1,
        le=1024,
        doc=(
            "threads of one training, in each of its processes; several trainings run"
            " side by side"
        ),
    )
    processes: int = setting(
        1,
        ge=1,
        le=1024,
        doc=(
            "processes that take each training together; at most as many as clients of"
            " a round"
        ),
    )
    gpu: int = setting(
        0,
        ge=0,
        le=1,
        doc=(
            "GPUs that each process of a training asks for; 0: trainings share what"
            " there is"
        ),
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", doc="where models are trained; auto: cuda if it is there"
    )
    kernels: Literal["auto", "off"] = setting(
        "auto", doc="hand-written passes on a CPU, where there are some; off: torch"
    )
    checkpoint_seconds: float = setting(
        60.0, gt=0, doc="least time between two checkpoints"
    )


class Tuning(Settings):
    """Search in which a method's hyper-parameters were found, for its account. Not part
    of a run's identity.
    """

    runs: int = setting(ge=1, le=10**9, doc="runs that were compared")
    data: Literal["public", "private"] = setting(
        doc="on what they were trained: public data cost clients nothing"
    )
    number: Literal["fixed", "geometric", "poisson"] = setting(
        "fixed", doc="how many runs there were to be"
    )


class MetaTest(Settings):
    """A meta-test of trained models that is not their runs' own: nothing is trained
    again for it.

    What is left out is the run's.
    """

    shots: int | None = setting(None, ge=1, doc="in place of task.shots")
    steps: int | None = setting(None, ge=0, doc="in place of evaluation.steps")
    rate: float | None = setting(None, gt=0, doc="in place of evaluation.rate")
    tasks: int | None = setting(None, ge=2, doc="in place of evaluation.tasks")
    query_per_class: int | None = setting(
        None, ge=1, doc="in place of evaluation.query_per_class"
    )
    optimizer: Literal["sgd", "adam"] | None = setting(
        None, doc="in place of evaluation.optimizer"
    )
    schedule: Literal["constant", "cosine"] | None = setting(
        None, doc="in place of evaluation.schedule"
    )
    best_step: bool | None = setting(None, doc="in place of evaluation.best_step")


class PublishedCurve(Settings):
    """A column of history.csv to draw."""

    label: str | None = setting(None, doc="in place of the series' label")
    band: tuple[str, str] | None = setting(None, doc="two columns: the ends of a band")
    per: Literal["clients"] | None = setting(
        None, doc="clients: the value is divided by those of a round"
    )
    dashed: bool = setting(False, doc="draw it dashed")


class SearchSpace(Settings):
    """Settings that are tried for a series of a table: each combination, or so many of
    them drawn at random.
    """

    values: dict[str, tuple[Any, ...]] = setting(
        doc="values by the run's dotted key; one may be a group of keys"
    )
    runs: int | None = setting(
        None, ge=1, doc="combinations that are drawn; null: all of them are tried"
    )
    seed: int = setting(0, ge=0, doc="of the draw")
    follows: str = setting(
        "",
        doc=(
            "a table of the same experiment, whose search for the series of this name"
            " chose the values of `run`; the account counts its runs as well"
        ),
    )


class Start(Settings):
    """A run whose model a series' runs start from, at each task and seed; it is made
    first, and no item shows it.
    """

    method: str = setting(doc="the method's name")
    use: str | tuple[str, ...] = setting(
        (), doc="the experiment's variants that lie below `run`, by name"
    )
    run: Overlay = setting({}, doc="overlay of the run")
    public: bool = setting(
        False, doc="whether its data set is nobody's secret (initial.public)"
    )


class Series(Settings):
    """A row of a table, or a line of a figure: a method, with an overlay of its run."""

    method: str = setting(doc="the method's name")
    label: str | None = setting(
        None, doc="what a figure calls it; null: the series' name"
    )
    variant: str = setting(
        "",
        doc=(
            "what a table adds to the method's title; where rows would have one name:"
            " its label"
        ),
    )
    repairs: str = setting(
        "", doc="a series of the same item whose claim does not hold, and here does"
    )
    use: str | tuple[str, ...] = setting(
        (), doc="the experiment's variants that lie below `run`, by name"
    )
    reading: Literal["as-published", "as-released"] = setting(
        "as-published",
        doc=(
            "as-released: the authors' code, also where no account covers it; `run`"
            " lies over its settings"
        ),
    )
    run: Overlay = setting({}, doc="overlay of the run")
    searched_by: str = setting(
        "",
        doc=(
            "a series of the same item, whose runs have found the cells of this one's"
            " network (model.genotype)"
        ),
    )
    start: Start | None = setting(
        None, doc="the run that its runs start from (initial); null: what `run` says"
    )
    test: MetaTest | None = setting(None, doc="over the figure's own `test`")
    search: SearchSpace | None = setting(
        None,
        doc=(
            "of a table: a row for each combination of settings, of which validation"
            " tasks choose one"
        ),
    )
    sweep: bool | str = setting(
        True,
        doc=(
            "of a sweep or frontier: false is a level line, or a claim's mark; a name"
            " is a key that is swept in place of x.key"
        ),
    )
    curves: dict[str, PublishedCurve] | None = setting(
        None, doc="of a history: the columns to draw"
    )
    profile: Literal["claimed", "proven"] | None = setting(
        None, doc="of a figure of accounts: whose delta"
    )
    epsilon: float | None = setting(
        None, gt=0, doc="of a figure of accounts: at which epsilon"
    )


class TableSettings(Settings):
    """Tasks × series."""

    title: str = setting(doc="the caption")
    tasks: Names = setting(doc="names of the experiment's tasks")
    seeds: Seeds | None = setting(None, doc="in place of the configuration's")
    task_seeds: dict[str, Seeds | None] = setting(
        {}, doc="in place of `seeds` for some of its tasks"
    )
    value: Literal["accuracy", "milliseconds"] = setting(
        "accuracy", doc="what is shown"
    )
    share_of: str | None = setting(
        None, doc="accuracies as shares of this series', in percent, seed by seed"
    )
    columns: tuple[Literal["weights", "seconds"], ...] = setting(
        (),
        doc=(
            "what is shown beside it: weights of the model, seconds of training; means"
            " over seeds"
        ),
    )
    series: dict[Name, Series | None] = setting(
        doc="its rows by name; null leaves one out"
    )


class XAxis(Settings):
    """Horizontal axis of a figure."""

    short: ClassVar = {
        show: {"label": label, "show": show, "scale": "log"}
        for show, label in (
            ("epsilon_proven", "proven ε"),
            ("epsilon_claimed", "claimed ε"),
        )
    }

    label: str = setting(doc="of the axis")
    show: Literal["value", "epsilon_claimed", "epsilon_proven"] = setting(
        "value", doc="of a sweep: the swept value, or in its place the ε of each point"
    )
    key: str | None = setting(
        None,
        doc="of a sweep: the run's key that is swept, or test.KEY of the meta-test",
    )
    column: str | None = setting(
        None,
        doc="of a history: the column of history.csv; round, of a figure of accounts",
    )
    symbol: str | None = setting(None, doc="of the swept key, for tables")
    values: Numbers | None = setting(None, doc="of a sweep: the values")
    also: tuple[Overlay, ...] | None = setting(
        None, doc="for each value, an overlay of what has to change with it"
    )
    scale: Literal["linear", "log"] = setting("linear", doc="of the axis")


class YAxis(Settings):
    """Vertical axis of a figure."""

    label: str = setting(doc="of the axis")
    scale: Literal["linear", "log"] = setting("linear", doc="of the axis")


class FigureSettings(Settings):
    """One task × series, some of them swept over the values of one key."""

    kind: Literal["sweep", "frontier", "history", "account"] = setting(
        doc=(
            "sweep: accuracy over a key; frontier: over the proven epsilon;"
            " history: columns of history.csv; account: delta by accounting alone"
        )
    )
    title: str = setting(doc="the caption")
    task: str = setting(doc="one of the experiment's tasks")
    seeds: Seeds | None = setting(None, doc="in place of the configuration's")
    test: MetaTest | None = setting(None, doc="a meta-test in place of the runs' own")
    x: XAxis = setting(
        doc=(
            "the horizontal axis; epsilon_proven or epsilon_claimed: accuracy over that"
            " ε, a point for each series"
        )
    )
    y: YAxis = setting(doc="the vertical axis")
    curves: dict[str, PublishedCurve] | None = setting(
        None, doc="of a history: the columns to draw, of all series"
    )
    series: dict[Name, Series | None] = setting(
        doc="its lines by name; null leaves one out"
    )


class Experiment(Settings):
    """A paper: its tasks, and the tables and figures that are made of them."""

    title: str = setting(doc="for readers")
    source: str = setting("", doc="what to cite")
    run: Overlay = setting(
        {}, doc="what every run of this paper is, over the configuration's `run`"
    )
    methods: dict[str, Overlay] = setting(
        {}, doc="overlays for one method, in this paper alone"
    )
    variants: dict[str, Overlay] = setting(
        {}, doc="overlays by name, for series to `use`"
    )
    published_at: Overlay = setting(
        {}, doc="the scale of the published values: a cell that differs is marked"
    )
    published_at_methods: dict[str, Overlay] = setting(
        {}, doc="the same for one method, in place of published_at"
    )
    tasks: Annotated[dict[str, Overlay], _some] = setting(
        doc="overlays of the run by name"
    )
    tables: dict[Name, TableSettings | None] = setting(
        {}, doc="by name; null leaves one out"
    )
    figures: dict[Name, FigureSettings | None] = setting(
        {}, doc="by name; null leaves one out"
    )


class Configuration(Settings):
    """The whole configuration: config/config.yaml, experiment files, --configfile and
    --config, one over the other.
    """

    preset: Annotated[Name, pydantic.AfterValidator(_no_folder)] | None = setting(
        None, doc="tables and figures go to results/PRESET/, not to results/"
    )
    seeds: Seeds = setting((0, 1, 2), doc="one training per seed")
    data: Data = Data()
    datasets: dict[Name, OwnDataset | None] = setting(
        {}, doc="data sets besides those that come with dpfedbench, by name"
    )
    stand_ins: dict[str, str | None] = setting(
        {},
        doc=(
            "data sets that are replaced, so that nothing is downloaded; null: not"
            " replaced"
        ),
    )
    machine: Machine = Machine()
    run: Overlay = setting(
        {}, doc="what a run is unless its paper, task, method or series says otherwise"
    )
    methods: dict[str, Overlay] = setting(
        {}, doc="overlays of `run` for one method wherever it is used"
    )
    tuning: dict[str, Tuning | None] = setting(
        {}, doc="by method: how its hyper-parameters were found"
    )
    experiments_folder: str | None = setting(
        None, doc="a folder with experiment files of one's own, read too"
    )
    plugins: list[str] = setting(
        [],
        doc=(
            "modules with methods, parts, models and readers of your own, imported from"
            " the working folder or installed; or set the variable DPFEDBENCH_PLUGINS"
        ),
    )
    experiments: dict[Name, Experiment | None] = setting(
        {}, doc="papers by name; null leaves one out"
    )

    @classmethod
    def read(cls, values: Any, where: str = "") -> Self:
        check_plain(values, where)
        return super().read(values, where)


def check_folder(folder: str | None) -> None:
    """Refuse a folder of experiments that is not there, or cannot be read.

    Raises:
        BenchError: names it.
    """
    if folder is not None and not os.path.isdir(folder):
        raise BenchError(
            f"experiments_folder is {folder}, but {Path.cwd()} has no such folder"
        )
    if folder is not None:
        check_readable(folder)


def check_names(shipped: Sequence[Path], own: Sequence[Path]) -> None:
    """Refuse an experiment of one's own that has the name of another: it would be laid
    over that one, key by key.

    A file that lays something over an experiment does not say its title; one that makes
    an experiment has to.

    Args:
        shipped: the experiment files of the repository.
        own: those that were given besides, in their order.

    Raises:
        BenchError: names both files.
    """
    file_of: dict[str, Path] = {}
    for path in (
        dict.fromkeys(file.resolve() for file in (*shipped, *own)) if own else ()
    ):
        experiments = read_file(path).get("experiments")
        for name, experiment in (
            experiments.items() if isinstance(experiments, Mapping) else ()
        ):
            if isinstance(experiment, Mapping) and "title" in experiment:
                if name in file_of:
                    first_name = file_of[name].name
                    raise BenchError(
                        f"experiments.{name} is made in {first_name} and again in"
                        f" {path.name}: give yours another name, or leave out its title"
                        " to change what is there"
                    )
                file_of[name] = path


def given(section: Settings) -> dict[str, Any]:
    """The plain values of those keys of a section that were given, at all depths."""
    # In the order of the class: that of a set is another in each process.
    return {
        key: _given(getattr(section, key))
        for key in type(section).model_fields
        if key in section.model_fields_set
    }


def _given(value: Any) -> Any:
    if isinstance(value, Settings):
        return given(value)
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items()}
    return (
        [_given(item) for item in value] if isinstance(value, (list, tuple)) else value
    )


def overlaid(*files: Mapping[str, Any]) -> dict[str, Any]:
    """Files of a configuration, one over the other as Snakemake lays them: mappings key
    by key, the rest replaced.
    """
    whole: dict[str, Any] = {}
    for file in files:
        for key, value in file.items():
            lower = whole.get(key)
            if isinstance(value, Mapping):
                whole[key] = overlaid(
                    lower if isinstance(lower, Mapping) else {}, value
                )
            else:
                whole[key] = value
    return whole
