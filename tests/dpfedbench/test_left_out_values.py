"""Values of overlays for several methods that a method's run does not have.

Each is explained by one of three rules, which are written out here a second time:

- **P**: the method does not declare the part, or it does not accept the kind that the
  overlay names. The whole part is not for the method.
- **K**: a later overlay names another kind of the part, which does not have the key.
- **S**: the overlay states the size of a round twice, `cohort` for clients and `lot`
  for records, and the method's kind has the other.
"""

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dpfedbench.config.merge import leaves
from dpfedbench.config.schema import keys_of, with_kind
from dpfedbench.config.yaml_files import read_file
from dpfedbench.errors import BenchError
from dpfedbench.experiments.cells import ItemContext, Known, _shared_values
from dpfedbench.experiments.configuration import (
    Configuration,
    Experiment,
    FigureSettings,
    overlaid,
)
from dpfedbench.experiments.expand import make_plan
from dpfedbench.method import Method
from dpfedbench.papers import METHODS
from tests.dpfedbench.test_experiments import configuration, planned

Values = Mapping[str, Any]

SIZES = {
    "participation.lot": "participation.cohort",
    "participation.cohort": "participation.lot",
}
"""The other size of a round, by dotted key."""


def overlays_of(
    configuration: Configuration,
    experiment: Experiment,
    task: str,
    method: type[Method],
) -> list[Values]:
    """Return the overlays that the cells of a method at a task share, in order."""
    small = configuration.small if experiment.sizes == "small" else {}
    return [
        *(small.get(group, {}) for group in method.groups()),
        configuration.run,
        experiment.run,
        experiment.tasks[task],
        method.defaults,
        *(configuration.methods.get(group, {}) for group in method.groups()),
        *(experiment.methods.get(group, {}) for group in method.groups()),
    ]


def explain(method: type[Method], overlays: list[Values], values: Values) -> list[str]:
    """Return the rule for each value of the overlays whose key `values` does not have.

    Raises:
        AssertionError: neither rule explains one of them.
    """
    rules = []
    for number, overlay in enumerate(overlays):
        for name, value in overlay.items():
            for key in leaves({name: value}):
                if has(values, key):
                    continue
                if not is_accepted(method, name, value):
                    rules.append("P")
                elif any(kind_at(later, key) for later in overlays[number + 1 :]):
                    rules.append("K")
                elif has(overlay, SIZES.get(key, "")) and has(values, SIZES[key]):
                    rules.append("S")
                else:
                    raise AssertionError(f"{method.name}: {key} is left out silently")
    return rules


def has(values: Values, key: str) -> bool:
    """Return whether there is a value at a dotted key."""
    group: Any = values
    for name in key.split("."):
        if not isinstance(group, Mapping) or name not in group:
            return False
        group = group[name]
    return True


def is_accepted(method: type[Method], name: str, value: Any) -> bool:
    """Return whether a method declares a part, and accepts the kind of the value."""
    key = keys_of(method).get(name)
    if key is None:
        return False
    group = with_kind(value)
    kind = group.get(key.tag) if isinstance(group, Mapping) else None
    return kind is None or not key.parts or kind in key.parts


def kind_at(overlay: Values, key: str) -> bool:
    """Return whether an overlay names the kind of a part that holds a dotted key."""
    group: Any = overlay
    for name in key.split(".")[:-1]:
        group = with_kind(group.get(name)) if isinstance(group, Mapping) else None
        if isinstance(group, Mapping) and {"kind", "partition"} & group.keys():
            return True
    return False


def cells_of(preset: str | None) -> Iterator[tuple[ItemContext, str, str, int]]:
    """Yield (item, task, method, number of cells) of a preset."""
    settings = Configuration.read(configuration(preset))
    known = Known(settings, METHODS, None, {})
    for (paper, name), item in planned(preset).items.items():
        experiment = settings.experiments[paper]
        assert experiment is not None
        spec = experiment.tables.get(name) or experiment.figures[name]
        assert spec is not None
        context = ItemContext(known, paper, experiment, spec, f"{paper}.{name}")
        tasks = (spec.task,) if isinstance(spec, FigureSettings) else spec.tasks
        counts = collections.Counter(cell.series for cell in item.cells)
        for series, count in counts.items():
            for task in tasks:
                method = context.series[series].method
                yield context, task, method, count // len(tasks)


@pytest.mark.parametrize("preset", [None, "smoke", "real", "scale", "paper"])
def test_left_out_value_is_explained_by_one_of_three_rules(preset: str | None) -> None:
    """All five presets together have 2,008 cells, and about 20,000 such values."""
    rules: collections.Counter[str] = collections.Counter()
    for item, task, name, count in cells_of(preset):
        method = METHODS[name]
        overlays = overlays_of(item.known.configuration, item.experiment, task, method)
        values = _shared_values(item, task, method)
        for rule in explain(method, overlays, values):
            rules[rule] += count
    print(preset, dict(rules), sum(rules.values()))
    assert {"P", "K"} <= set(rules) <= {"P", "K", "S"}


def test_explanation_misses_a_value_that_is_left_out_silently() -> None:
    """As a key of another kind was until now: neither rule explains it."""
    overlays = [{"clipping": {"kind": "constant", "percentile": 50}}]
    values = {"clipping": {"kind": "constant", "threshold": 1.0}}
    with pytest.raises(AssertionError, match=r"clipping\.percentile is left out"):
        explain(METHODS["dp-agr"], overlays, values)


def test_size_of_records_beside_no_cohort_is_not_explained() -> None:
    values = {"participation": {"kind": "poisson", "cohort": 4}}
    both = [{"participation": {"cohort": 4, "lot": 8}}]
    assert explain(METHODS["dp-agr"], both, values) == ["S"]
    alone = [{"participation": {"lot": 8}}]
    with pytest.raises(AssertionError, match=r"participation\.lot is left out"):
        explain(METHODS["dp-agr"], alone, values)


FILE = """
experiments:
  mine:
    title: Mine
    run:
      client_update:
        order: 1
    tasks: {letters: {dataset: glyphs}}
    tables:
      one:
        title: one
        tasks: [letters]
        series:
          dp-agr: {method: dp-agr}
          reptile: {method: reptile}
"""


def test_key_that_one_of_the_methods_does_not_have_is_refused_with_its_line(
    tmp_path: Any,
) -> None:
    """Reptile has no order."""
    path = tmp_path / "mine.yaml"
    path.write_text(FILE, encoding="utf-8")
    base = {**configuration(), "experiments": {}}
    whole = Configuration.read(overlaid(base, read_file(path)))
    with pytest.raises(BenchError) as fault:
        make_plan(whole, files=[path])
    assert str(fault.value) == (
        "unknown key experiments.mine.run.client_update.order"
        " [in experiments.mine.tables.one, task letters, series reptile]"
        f" ({path}, line 7)"
    )
