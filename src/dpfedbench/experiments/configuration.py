"""Classes of the configuration: the default run, overlays of presets, and the papers
with their tables and figures.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from dpfedbench import plugins
from dpfedbench.config.messages import LONGEST_NAME, LOWER_CASE
from dpfedbench.config.part import Settings, setting
from dpfedbench.config.yaml_files import read_file
from dpfedbench.errors import BenchError

Overlay = Annotated[dict[str, Any], pydantic.WithJsonSchema({"title": "overlay"})]
"""Values of some keys of a run. The methods define the allowed keys
(`dpfedbench.config.merge`).
"""

Name = Annotated[str, pydantic.Field(pattern=LOWER_CASE, max_length=LONGEST_NAME)]
"""Name that becomes a file or a folder."""


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
Sizes = Literal["small", "published"]


class Data(Settings):
    """Source of data sets."""

    local_dir: str | None = setting(
        None,
        doc=(
            "folder with archives, in place of a download; or the variable"
            " DPFEDBENCH_DATA"
        ),
    )


class OwnDataset(Settings):
    """Data set of the user: see docs/your-data-and-model.md."""

    reader: str = setting(
        pattern=LOWER_CASE, doc="module of dpfedbench.data that reads it"
    )
    version: int = setting(
        1,
        ge=1,
        le=10**9,
        doc="version of its content: raise it when that changes",
    )
    source: str = setting("", doc="origin of the data")
    licence: str = setting("", doc="licence of the data")
    options: dict[str, Any] = setting({}, doc="arguments of its reader")


class Machine(Settings):
    """Machine settings. They are not part of a run's identity, and change results by
    rounding at most.
    """

    threads: int = setting(
        1,
        ge=1,
        le=1024,
        doc="CPU threads of each process of a training",
    )
    processes: int = setting(
        1,
        ge=1,
        le=1024,
        doc="processes of one training; at most the clients of a round",
    )
    gpu: int = setting(
        0,
        ge=0,
        le=1,
        doc="GPUs that each process of a training reserves; 0: trainings share them",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", doc="auto: cuda if it is available"
    )
    kernels: Literal["auto", "off"] = setting(
        "auto", doc="compiled passes on a CPU, where they exist; off: torch alone"
    )
    checkpoint_seconds: float = setting(
        60.0, gt=0, doc="least time between two checkpoints"
    )


class Tuning(Settings):
    """Search that found a method's hyper-parameters, for its account. Not part of a
    run's identity.
    """

    runs: int = setting(ge=1, le=10**9, doc="number of compared runs")
    data: Literal["public", "private"] = setting(
        doc="their data: a search on public data costs no privacy"
    )
    number: Literal["fixed", "geometric", "poisson"] = setting(
        "fixed", doc="distribution of the planned number of runs"
    )


class MetaTest(Settings):
    """Meta-test of trained models other than their runs' own; nothing is trained again.

    Missing values are those of the run.
    """

    shots: int | None = setting(None, ge=1, doc="replaces task.shots")
    steps: int | None = setting(None, ge=0, doc="replaces evaluation.steps")
    rate: float | None = setting(None, gt=0, doc="replaces evaluation.rate")
    tasks: int | None = setting(None, ge=2, doc="replaces evaluation.tasks")
    query_per_class: int | None = setting(
        None, ge=1, doc="replaces evaluation.query_per_class"
    )
    optimizer: Literal["sgd", "adam"] | None = setting(
        None, doc="replaces evaluation.optimizer"
    )
    schedule: Literal["constant", "cosine"] | None = setting(
        None, doc="replaces evaluation.schedule"
    )
    best_step: bool | None = setting(None, doc="replaces evaluation.best_step")


class PublishedCurve(Settings):
    """Column of history.csv that a figure shows."""

    label: str | None = setting(None, doc="replaces the series' label")
    band: tuple[str, str] | None = setting(None, doc="two columns: the ends of a band")
    per: Literal["clients"] | None = setting(
        None, doc="divide by the number of clients of a round"
    )
    dashed: bool = setting(False, doc="whether the line is dashed")


class SearchSpace(Settings):
    """Settings that a search tries for a series of a table: all combinations, or a
    number of them drawn at random.
    """

    values: Annotated[dict[str, Annotated[tuple[Any, ...], _some]], _some] = setting(
        doc="values by the run's dotted key; a value may be a group of keys"
    )
    runs: int | None = setting(
        None, ge=1, doc="number of drawn combinations; null: all are tried"
    )
    seed: int = setting(0, ge=0, doc="seed of the draw")
    follows: str = setting(
        "",
        doc=(
            "table of the experiment whose search for this series chose the values"
            " of `run`; the account counts its runs as well"
        ),
    )


class Start(Settings):
    """Run whose model the runs of a series start from, for each task and seed.

    It is trained first, and no table or figure shows it.
    """

    method: str = setting(doc="name of the method")
    use: str | tuple[str, ...] = setting(
        (), doc="variants of the experiment, below `run`"
    )
    run: Overlay = setting({}, doc="overlay of the run")
    public: bool = setting(False, doc="whether its data set is public (initial.public)")


class Series(Settings):
    """Row of a table, or line of a figure: a method, with an overlay of its run."""

    method: str = setting(doc="name of the method")
    label: str | None = setting(None, doc="label in a figure; null: the series' name")
    variant: str = setting(
        "",
        doc=(
            "what a table adds to the method's title; by default the label, where"
            " two rows would have one name"
        ),
    )
    repairs: str = setting(
        "", doc="series of the same item whose void claim is valid here"
    )
    use: str | tuple[str, ...] = setting(
        (), doc="variants of the experiment, below `run`"
    )
    reading: Literal["as-published", "as-released"] = setting(
        "as-published",
        doc="as-released: the authors' code and its settings, below `run`",
    )
    run: Overlay = setting({}, doc="overlay of the run")
    searched_by: str = setting(
        "",
        doc=(
            "series of the same item whose runs find this network's cells"
            " (model.genotype)"
        ),
    )
    start: Start | None = setting(
        None, doc="run that its runs start from; null: as in `run`"
    )
    test: MetaTest | None = setting(
        None, doc="meta-test that replaces the runs' own, over a figure's `test`"
    )
    search: SearchSpace | None = setting(
        None,
        doc=(
            "for tables: a row for each combination of settings, of which"
            " validation tasks choose one"
        ),
    )
    sweep: bool | str = setting(
        True,
        doc=(
            "for a sweep or frontier: false: a horizontal line, or the mark of a"
            " claim; a name: a key in place of x.key"
        ),
    )
    curves: dict[str, PublishedCurve] | None = setting(
        None, doc="for a history: the columns to draw"
    )
    profile: Literal["claimed", "proven"] | None = setting(
        None, doc="for an account: the profile whose delta is shown"
    )
    epsilon: float | None = setting(
        None, gt=0, doc="for an account: the ε of the shown delta"
    )


class TableSettings(Settings):
    """Table of tasks × series."""

    title: str = setting(doc="caption")
    tasks: Names = setting(doc="names of the experiment's tasks")
    seeds: Seeds | None = setting(None, doc="replaces the configuration's seeds")
    task_seeds: dict[str, Seeds | None] = setting(
        {}, doc="replaces `seeds` for some tasks"
    )
    value: Literal["accuracy", "milliseconds"] = setting(
        "accuracy", doc="quantity in the cells"
    )
    share_of: str | None = setting(
        None, doc="accuracies in percent of this series', seed by seed"
    )
    columns: tuple[Literal["weights", "seconds", "personal"], ...] = setting(
        (),
        doc=(
            "further columns, means over seeds: number of weights, seconds of"
            " training; personal: accuracy of the clients' own models, of their"
            " worst tenth, and its spread"
        ),
    )
    series: dict[Name, Series | None] = setting(doc="rows by name; null removes a row")


class XAxis(Settings):
    """Horizontal axis of a figure."""

    short: ClassVar[Mapping[str, Mapping[str, str]]] = {
        show: {"label": label, "show": show, "scale": "log"}
        for show, label in (
            ("epsilon_proven", "proven ε"),
            ("epsilon_claimed", "claimed ε"),
        )
    }

    @pydantic.model_validator(mode="before")
    @classmethod
    def _write_out(cls, value: Any) -> Any:
        return cls.short.get(value, value) if isinstance(value, str) else value

    label: str = setting(doc="label of the axis")
    show: Literal["value", "epsilon_claimed", "epsilon_proven"] = setting(
        "value", doc="for a sweep: the swept value, or the ε of each point"
    )
    key: str | None = setting(
        None,
        doc="for a sweep: the run's key, or test.KEY of the meta-test",
    )
    column: str | None = setting(
        None,
        doc="for a history: the column of history.csv; for an account: round",
    )
    symbol: str | None = setting(None, doc="symbol of the swept key, for tables")
    values: Numbers | None = setting(None, doc="for a sweep: the values")
    also: tuple[Overlay, ...] | None = setting(
        None, doc="for each value, an overlay of the keys that change with it"
    )
    scale: Literal["linear", "log"] = setting("linear", doc="scale of the axis")


class YAxis(Settings):
    """Vertical axis of a figure."""

    label: str = setting(doc="label of the axis")
    show: Literal["accuracy", "personal"] = setting(
        "accuracy",
        doc=(
            "for a sweep: accuracy of the server's model, or (personal) of the"
            " clients' own and, dashed, of their worst tenth"
        ),
    )
    scale: Literal["linear", "log"] = setting("linear", doc="scale of the axis")


class FigureSettings(Settings):
    """Figure of one task × series, some of them swept over the values of one key."""

    kind: Literal["sweep", "frontier", "history", "account"] = setting(
        doc=(
            "accuracy over a key (sweep) or over the proven ε (frontier), columns"
            " of history.csv, or delta by accounting alone"
        )
    )
    title: str = setting(doc="caption")
    task: str = setting(doc="one of the experiment's tasks")
    seeds: Seeds | None = setting(None, doc="replaces the configuration's seeds")
    test: MetaTest | None = setting(None, doc="meta-test that replaces the runs' own")
    x: XAxis = setting(
        doc=(
            "horizontal axis; epsilon_proven or epsilon_claimed: accuracy over that ε,"
            " a point for each series"
        )
    )
    y: YAxis = setting(doc="vertical axis")
    curves: dict[str, PublishedCurve] | None = setting(
        None, doc="for a history: the columns to draw for all series"
    )
    series: dict[Name, Series | None] = setting(
        doc="lines by name; null removes a line"
    )


class Experiment(Settings):
    """Paper: its tasks, and the tables and figures of their results."""

    title: str = setting(doc="title of the paper")
    source: str = setting("", doc="citation of the paper")
    sizes: Sizes = setting(
        "small",
        doc=(
            "values below this experiment's: the configuration's `small`, or those"
            " of the methods' classes"
        ),
    )
    run: Overlay = setting(
        {}, doc="overlay of all its runs, over the configuration's `run`"
    )
    methods: dict[str, Overlay] = setting(
        {},
        doc="overlays in this paper alone, by method, family or `all`",
    )
    variants: dict[str, Overlay] = setting(
        {}, doc="overlays by name, for series to `use`"
    )
    published_at: Overlay = setting(
        {}, doc="scale of the published values: a cell that differs is marked"
    )
    published_at_methods: dict[str, Overlay] = setting(
        {}, doc="by method, the scale that replaces published_at"
    )
    tasks: Annotated[dict[str, Overlay], _some] = setting(
        doc="overlays of the run, by the task's name"
    )
    tables: dict[Name, TableSettings | None] = setting(
        {}, doc="tables by name; null removes a table"
    )
    figures: dict[Name, FigureSettings | None] = setting(
        {}, doc="figures by name; null removes a figure"
    )


class Configuration(Settings):
    """The whole configuration: config/config.yaml, experiment files, --configfile and
    --config, merged in this order.
    """

    preset: Name | None = setting(None, doc="results go to results/PRESET/")
    seeds: Seeds = setting((0, 1, 2), doc="one training per seed")
    data: Data = Data()
    datasets: dict[Name, OwnDataset | None] = setting(
        {}, doc="further data sets, besides those of dpfedbench, by name"
    )
    stand_ins: dict[str, str | None] = setting(
        {},
        doc=(
            "data set in place of each named one, without a download; null: not"
            " replaced"
        ),
    )
    machine: Machine = Machine()
    sizes: Sizes = setting(
        "small",
        doc="small: config/small.yaml lies over the shipped papers' files",
    )
    small: dict[str, Overlay] = setting(
        {},
        doc=(
            "values of runs that state none, below `run`, by method, family or `all`; not for"
            " experiments with `sizes: published`"
        ),
    )
    run: Overlay = setting({}, doc="overlay of all runs")
    methods: dict[str, Overlay] = setting(
        {},
        doc="overlays of `run` in all papers, by method, family or `all`",
    )
    tuning: dict[str, Tuning | None] = setting(
        {}, doc="search for a method's hyper-parameters, by its name"
    )
    experiments_folder: str | None = setting(
        None, doc="folder with further experiment files of your own"
    )
    plugins: list[str] = setting(
        [],
        doc=(
            "modules with methods, parts, models and readers of your own, in the"
            " working folder or installed; or the variable DPFEDBENCH_PLUGINS"
        ),
    )
    experiments: dict[Name, Experiment | None] = setting(
        {}, doc="papers by name; null removes a paper"
    )


def shipped_files(config: Path, preset: Any = None, sizes: Any = None) -> list[Path]:
    """Return the configuration files below the user's, in the order of their merging.

    They are config.yaml, the experiments of the benchmark and of plugins in the order
    of their names, the benchmark's small sizes, and the plugins' overlays for the
    preset. The benchmark's own preset is a file of the user, `--configfile`. Without a
    preset, the files first-look.yaml leave out points of the experiments.

    Args:
        config: the folder `config` of the benchmark.
        preset: name of the preset; None without one.
        sizes: "published" leaves the small sizes out; None: as the preset's file says.
    """
    if sizes is None and preset:
        preset_file = config / "presets" / f"{preset}.yaml"
        sizes = read_file(preset_file).get("sizes") if preset_file.exists() else None
    plugins.load()
    folders = [config, *plugins.config_folders()]
    experiments = [
        file for folder in folders for file in (folder / "experiments").glob("*.yaml")
    ]
    if preset:
        overlays = [folder / "presets" / f"{preset}.yaml" for folder in folders[1:]]
    else:
        overlays = [folder / "first-look.yaml" for folder in folders]
    return [
        config / "config.yaml",
        *sorted(experiments, key=lambda file: file.stem),
        *([] if sizes == "published" else [config / "small.yaml"]),
        *(file for file in overlays if file.exists()),
    ]


def read_shipped(config: Path, preset: str | None) -> dict[str, Any]:
    """Return the merged values of the benchmark's files, and of one of its presets.

    Args:
        config: the folder `config` of the benchmark.
        preset: name of the preset; None without one.
    """
    files = shipped_files(config, preset)
    if preset:
        files.append(config / "presets" / f"{preset}.yaml")
    return overlaid(*map(read_file, files))


def check_folder(folder: str | None) -> None:
    """Refuse a folder of experiments that is missing.

    Raises:
        BenchError: names the folder.
    """
    if folder is not None and not os.path.isdir(folder):
        raise BenchError(
            f"experiments_folder is {folder}, but {Path.cwd()} has no such folder"
        )


def check_names(shipped: Sequence[Path], own: Sequence[Path]) -> None:
    """Refuse an experiment of the user that has the name of another one.

    It would be merged over the other one, key by key. A file that overlays an
    experiment does not give a title; a file that defines an experiment has to.

    Args:
        shipped: the experiment files of the repository.
        own: further experiment files, in their order.

    Raises:
        BenchError: names both files.
    """
    file_of: dict[str, Path] = {}
    if not own:
        return
    for path in dict.fromkeys(file.resolve() for file in (*shipped, *own)):
        for name in _titled_experiments(path):
            if name in file_of:
                raise BenchError(
                    f"experiments.{name} is made in {file_of[name].name} and again in"
                    f" {path.name}: give yours another name, or leave out its title"
                    " to change what is there"
                )
            file_of[name] = path


def _titled_experiments(path: Path) -> list[str]:
    """Return the experiments that a file makes: those with a title."""
    experiments = read_file(path).get("experiments") or {}
    return [name for name, values in experiments.items() if "title" in (values or {})]


def choose_experiments(
    names: str, own: Sequence[Path], planned: Sequence[str]
) -> list[str]:
    """Return the experiments that the default target is restricted to, none for all.

    Args:
        names: names with commas between them; or `own`, for the experiments that the
            files make, which are those with a title.
        own: the user's files.
        planned: the experiment of each table and figure.

    Raises:
        BenchError: an experiment has no table or figure, or the files make none.
    """
    if not names:
        return []
    chosen = names.split(",")
    if chosen == ["own"]:
        titled = {name for path in own for name in _titled_experiments(path)}
        if not titled:
            files = ", ".join(path.name for path in own)
            raise BenchError(
                f"{files} makes no experiment (one has a title). A file that changes"
                " existing ones goes after --configfile"
            )
        chosen = sorted(titled)
    for name in chosen:
        if name not in planned:
            raise BenchError(
                f"only is {names}: no experiment {name} has a table or figure; there"
                f" are {', '.join(dict.fromkeys(planned))}"
            )
    return chosen


def explicit_values(section: Settings) -> dict[str, Any]:
    """Return the plain values of the keys of a section that were set, at all depths."""
    return section.model_dump(mode="json", exclude_unset=True)


def overlaid(*files: Mapping[str, Any]) -> dict[str, Any]:
    """Return configuration files merged as Snakemake merges them.

    Mappings are merged key by key; other values are replaced.
    """
    whole: dict[str, Any] = {}
    for file in files:
        _lay_file(whole, file)
    return whole


def _lay_file(whole: dict[str, Any], file: Mapping[str, Any]) -> None:
    """Lay a file over the merged files before it, whose mappings are changed."""
    for key, value in file.items():
        if not isinstance(value, Mapping):
            whole[key] = value
            continue
        if not isinstance(whole.get(key), dict):
            whole[key] = {}
        _lay_file(whole[key], value)
