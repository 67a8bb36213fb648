"""What no folder, data set, figure or machine can take is refused in one line when the
plan is made, and no later.
"""

import csv
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from dpfedbench import manifest
from dpfedbench.data import (
    DATASETS_TABLE,
    cifar,
    digits,
    glyph_scenes,
    glyphs,
    mini_imagenet,
    mnist,
    omniglot,
    tiny_imagenet,
)
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import FOLDERS
from dpfedbench.settings.layers import set_key
from tests.test_experiments import CONFIG, configuration, known, plan, refusal

PAPER = "experiments.dp-fedmeta"
TABLE, FIGURE = f"{PAPER}.tables.table2", f"{PAPER}.figures.figure2b"
RUN = "[in experiments."
NO_NAME = "use lower-case letters, digits and hyphens, at most 64"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_preset_does_not_lie_in_a_folder_of_the_workflow(name: str) -> None:
    assert (
        refusal(configuration("smoke", preset=name))
        == f'preset is "{name}": results/{name} is a folder of the workflow\'s own,'
        " choose another name"
    )


def test_those_folders_are_the_workflows() -> None:
    """What its files name below results/, or below a preset's folder, which may be
    results/ itself.
    """
    texts = [
        path.read_text(encoding="utf-8")
        for path in (CONFIG.parent / "workflow" / "rules").glob("*.smk")
    ]
    found = set(re.findall(r'"results/(\w+)/|\{REPORT\}/(\w+)/', "\n".join(texts)))
    assert {one or other for one, other in found} | {manifest.FOLDER} <= set(
        FOLDERS
    ) and len(found) >= 6


@pytest.mark.parametrize(
    "name",
    ["../../../evil", "/tmp/evil", "a" * 300, "a{b}", "A", "", "a b", "a/b", "é"],
)
@pytest.mark.parametrize("group", ["tables", "figures"])
def test_a_name_that_is_no_file_is_refused(name: str, group: str) -> None:
    found = configuration("smoke")
    items = found["experiments"]["dp-fedmeta"][group]
    items[name] = next(item for item in items.values() if item is not None)
    said = refusal(found)
    assert said.startswith(f"{PAPER}.{group}") and said.endswith(NO_NAME)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "2022",
            (
                "experiments.2022: a paper is a target of the workflow, and 2022 cannot"
                " be one: let its name begin w"
            ),
        ),
        (
            "class",
            (
                "experiments.class: a paper is a target of the workflow, and class"
                " cannot be one: let its name begi"
            ),
        ),
        ("None", f'experiments.None has a part named "None": {NO_NAME}'),
        ("a" * 65, f"experiments.{'a' * 65} has a part named"),
    ],
)
def test_a_paper_that_is_no_target_is_refused(name: str, said: str) -> None:
    found = configuration("smoke")
    found["experiments"][name] = found["experiments"]["dp-fedmeta"]
    assert refusal(found).startswith(said)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            f"{TABLE}.task_seeds",
            {"nowhere": [1]},
            f"{TABLE}.task_seeds: there is no task 'nowhere', the nearest is ",
        ),
        (
            "stand_ins.omniglot",
            "digits",
            (
                "stand_ins.omniglot is digits, which holds labelled records, but"
                " omniglot ho"
            ),
        ),
        (
            "stand_ins.cifar-fs",
            "docstrings",
            "stand_ins.cifar-fs is docstrings, which holds texts, but cifar-fs holds",
        ),
        (
            f"{FIGURE}.x.column",
            "rund",
            (
                f"{FIGURE}.series.maml: there is no column of history.csv 'rund', the"
                " nearest"
            ),
        ),
        (
            f"{FIGURE}.curves",
            {"losss": {}},
            f"{FIGURE}.series.maml: there is no column of history.csv 'losss', the ne",
        ),
        (
            "run.model.filters",
            10**8,
            (
                "run.model.filters is 100000000: expected a whole number at least 1 and"
                " at most"
            ),
        ),
        (
            "machine.threads",
            10**6,
            (
                "machine.threads is 1000000: expected a whole number at least 1 and at"
                " most 1,024"
            ),
        ),
        (
            "run.clients.count",
            10**12,
            (
                "run.clients.count is 1000000000000: expected a whole number at least 1"
                " and at"
            ),
        ),
        (
            "run.participation.rounds",
            10**9,
            "run.participation.rounds is 1000000000: expected a whole number at least",
        ),
        (
            "run.client_update.inner_steps",
            10**9,
            "run.client_update.inner_steps is 1000000000: expected a whole numbe",
        ),
        (
            "run.clipping.threshold",
            1e300,
            "run.clipping.threshold is 1e+300: expected a number at least 1e-20 and at",
        ),
        (
            "run.noise.multiplier",
            1e308,
            (
                "run.noise.multiplier is 1e+308: expected a number at least 0.001 and"
                " at most"
            ),
        ),
        (
            "run.noise.multiplier",
            1e-300,
            "run.noise.multiplier is 1e-300: expected a number at least 0.001 or null",
        ),
        (
            "run.budget.epsilon",
            1e-9,
            "run.budget.epsilon is 1e-09: expected a number at least 0.001 or null",
        ),
        (
            "run.budget.delta",
            1e-300,
            "run.budget.delta is 1e-300: expected a number at least 1e-30 and below 1",
        ),
        (
            "run.server.rate",
            1e300,
            "run.server.rate is 1e+300: expected a number above 0 and at most 1e+06",
        ),
        ("seeds", [0.5], "seeds.0 is 0.5: expected a whole number at least 0"),
        ("seeds", [0, 0.0], "seeds is [0, 0]: expected a list without repeats"),
        (
            "seeds",
            [10**30],
            (
                "seeds.0 is 1000000000000000000000000000000: expected a whole number at"
                " least 0 and at mo"
            ),
        ),
        (
            "run.clients.examples_per_class",
            1000,
            "clients.examples_per_class need 1,000 images of a class, but glyphs",
        ),
        (
            "run.evaluation.query_per_class",
            10000,
            "task.shots and evaluation.query_per_class need 10,001 images of a",
        ),
        (
            f"{PAPER}.tasks.omniglot-1shot.task.ways",
            2000,
            "task.ways is 2,000, but glyphs has 1150 train classes: low",
        ),
        (
            f"{TABLE}.title",
            r"$\frac{$",
            f'{TABLE}.title is "$\\\\frac{{$", but matplotlib cannot draw its LaTeX (',
        ),
        (
            f"{FIGURE}.x.label",
            r"$\nope{x}$",
            f'{FIGURE}.x.label is "$\\\\nope{{x}}$", but matplotlib cannot draw ',
        ),
        (
            f"{TABLE}.series.maml.variant",
            "$}$ and",
            f'{TABLE}.series.maml.variant is "$}}$ and", but matplotlib ',
        ),
        (
            "run.dataset",
            "nope",
            "run.dataset: there is no data set 'nope', the nearest is ",
        ),
        (
            f"{PAPER}.tasks.omniglot-1shot.dataset",
            "nope",
            f"{PAPER}.tasks.omniglot-1shot.dataset: there is no data se",
        ),
        (
            "methods.maml",
            {"dataset": "nope"},
            "methods.maml.dataset: there is no data set 'nope', the nearest is ",
        ),
        (
            f"{TABLE}.title",
            "a\0b",
            (
                f"{TABLE}.title has the letter '\\x00', which cannot be printed: take"
                " it out"
            ),
        ),
        (
            f"{PAPER}.title",
            "\ud800",
            (
                f"{PAPER}.title has the letter '\\ud800', which cannot be printed: take"
                " it out"
            ),
        ),
        (
            f"{FIGURE}.series.maml.label",
            "\x1b[2J",
            f"{FIGURE}.series.maml.label has the letter '\\x1b', which cannot",
        ),
        (
            f"{PAPER}.tasks",
            {"a\0": {}},
            (
                f"a key of {PAPER}.tasks has the letter '\\x00', which cannot be"
                " printed: ta"
            ),
        ),
        (
            f"{TABLE}.title",
            "a" * 10**6,
            (
                f'{TABLE}.title is "{"a" * 56}...: expected at most 1,000 letters, it'
                " has 1,0"
            ),
        ),
        ("seeds", list(range(1001)), "seeds has 1,001 values: give at most 1,000"),
        (
            f"{TABLE}.seeds",
            list(range(1001)),
            f"{TABLE}.seeds has 1,001 values: give at most 1,000",
        ),
        (
            "datasets.mine",
            {
                "reader": "image-folder",
                "options": {"folder": "x", "size": 10**7, "channels": 3},
            },
            (
                "datasets.mine.options.size is 10000000: expected a whole number at"
                " least 8 and at most 1,024"
            ),
        ),
    ],
)
def test_a_value_that_nothing_can_take_is_one_line(
    key: str, value: Any, said: str
) -> None:
    if key.startswith("datasets."):
        with pytest.raises(BenchError, match=re.escape(said)):
            known(**{key: value})
        return
    found = refusal(configuration("smoke", **{key: value}))
    assert found.startswith(said), found


@pytest.mark.parametrize(
    "key",
    ["seeds", "run", f"{PAPER}.run.model", f"{TABLE}.tasks", "datasets.mine.options"],
)
@pytest.mark.parametrize(
    "text", ["&a [1, *a]", "&a {b: *a}", "[&a [[*a]]]", "{a: &a {b: [*a]}}"]
)
def test_what_refers_to_itself_is_one_line(key: str, text: str) -> None:
    """As YAML lets a list or a group do."""
    found = set_key(configuration("smoke"), key, None)
    *above, last = key.split(".")
    place = found
    for name in above:
        place = place[name]
    place[last] = yaml.safe_load(text)
    assert re.fullmatch(
        rf"{re.escape(key)}\S* refers to itself: write out what it holds",
        refusal(found),
    )


def test_what_aliases_make_huge_is_one_line() -> None:
    """Ten lists, each of ten times the one before: 240 letters of YAML for ten thousand
    million values.
    """
    lists = "".join(
        f"l{i}: &l{i} [{', '.join(['1' if i == 0 else f'*l{i - 1}'] * 10)}]\n"
        for i in range(10)
    )
    said = refusal(configuration("smoke") | {"run": yaml.safe_load(lists)})
    assert said == "the configuration has more than 1,000,000 values: make it smaller"


def test_what_aliases_only_shorten_is_taken() -> None:
    shared = {"threshold": 0.25}
    given = {key: {"clipping": shared} for key in ("dp-agr", "dp-agrlr")}
    assert plan(configuration("smoke", methods=given)).items


def test_a_seed_that_is_written_as_a_fraction_is_the_same_seed() -> None:
    assert list(plan(configuration("smoke", seeds=[0.0])).runs) == list(
        plan(configuration("smoke", seeds=[0])).runs
    )


@pytest.mark.parametrize(
    "title",
    ["$\\epsilon$ at $\\delta = 10^{-6}$", "it costs 5 $", r"\$ and \$", "100 % < 3"],
)
def test_a_title_that_can_be_set_is_taken(title: str) -> None:
    assert plan(configuration("smoke", **{f"{FIGURE}.title": title})).items


def test_matplotlib_is_loaded_for_a_dollar_sign_only() -> None:
    code = (
        "import sys\n"
        "from dpfedbench.experiments.drawable import check_drawable\n"
        "check_drawable('an ordinary title', 'here')\n"
        "print('matplotlib' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_clients_that_share_no_image_have_to_fit() -> None:
    """1,150 classes of 20 images, 6 a client and class: 3 shares of each class, 1,150 x
    3 / 5 clients.
    """
    key = f"{TABLE}.series.maml.run"
    given = {"partition": "disjoint", "count": 690}
    plan(
        configuration(
            "smoke", **{key: {"clients": given, "participation": {"cohort": 10}}}
        )
    )
    given["count"] = 700
    said = refusal(
        configuration(
            "smoke", **{key: {"clients": given, "participation": {"cohort": 10}}}
        )
    )
    assert said.startswith(
        "clients.count is 700, but glyphs has images for 690 clients that share none:"
        " lower it"
    )


def test_what_a_plan_knows_of_data_sets_is_what_their_readers_give() -> None:
    with open(DATASETS_TABLE, newline="", encoding="utf-8") as handle:
        said = {
            row["name"]: row["holds"].partition(" of ")
            for row in csv.DictReader(handle, delimiter="\t")
        }
    holds, shapes = (
        {name: parts[part] for name, parts in said.items()} for part in (0, 2)
    )
    for name, shape in shapes.items():
        named = re.search(r"(?:scenes|imagenet-100)-(\d+)$", name)
        side = (
            named[1]
            if named
            else {"cifa": "32", "mini": "84", "tiny": "64"}.get(name[:4], "28")
        )
        assert shape == (
            ""
            if holds[name] == "texts"
            else f"{side}x{side}x{1 if side == '28' else 3}"
        ), name

    def classes(counts: Any, each: int) -> str:
        return f"classes {'/'.join(map(str, counts))} x {each}"

    assert holds["cifar-fs"] == classes(
        map(len, cifar.SPLIT_CLASSES.values()), cifar.FEW_SHOT_EXAMPLES
    )
    assert holds["mini-imagenet"] == classes(
        map(len, mini_imagenet.SPLIT_CLASSES.values()), mini_imagenet.EXAMPLES
    )
    assert holds["omniglot"] == classes(omniglot.SPLIT_COUNTS, omniglot.DRAWINGS)
    assert holds["glyphs"].startswith(classes(glyphs.SPLIT_COUNTS, 20))
    for size in (32, 84):
        assert holds[f"glyph-scenes-{size}"].startswith(
            f"classes {'/'.join(map(str, glyph_scenes.SPLIT_COUNTS))} x "
        )
    for name, (count, each) in tiny_imagenet.COUNTS.items():
        found = holds[name.removesuffix("-200")]
        assert sum(map(int, found.split()[1].split("/"))) == count and found.endswith(
            f" x {each}"
        )
    for name, counts in (
        ("mnist", mnist._MNIST.counts),
        ("fashion-mnist", mnist._FASHION_MNIST.counts),
    ):
        assert holds[name] == f"records {sum(counts['train'])}/{sum(counts['test'])}"
    assert (
        holds["digits"]
        == f"records {10 * digits.COUNTS['train']}/{10 * digits.COUNTS['test']}"
    )


def test_every_preset_plans_what_its_data_hold() -> None:
    for preset in (None, "smoke", "real", "scale", "paper"):
        assert plan(set_key(configuration(preset), "seeds", [0])).runs
