"""The command that is shown is the caller's own, and can be called."""

import shlex
from pathlib import Path

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.experiments.targets import check_targets, own_command

ROOT = Path("/somewhere/dpfedbench")
ITEMS = {("mine", "table1"): True, ("mine", "figure1"): False}


def test_a_command_is_shown_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        own_command(
            through_uv=False, through_conda=False, files=[], values=[], root=ROOT
        )
        == "snakemake --cores all {target}"
    )
    files = [ROOT / "config" / "presets" / "real.yaml", tmp_path / "my own.yaml"]
    values = ["seeds=[0]", "deep=yes", "machine={threads: 4, gpu: 1}"]
    found = own_command(
        through_uv=True, through_conda=True, files=files, values=values, root=ROOT
    )
    assert shlex.split(found) == [
        "uv",
        "run",
        "snakemake",
        "--cores",
        "all",
        "--use-conda",
        "{target}",
        "--configfile",
        "config/presets/real.yaml",
        "my own.yaml",
        "--config",
        "seeds=[0]",
        "machine={threads: 4, gpu: 1}",
    ]


def test_the_command_of_an_installed_package_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path("/site-packages/dpfedbench/workflow")
    files = [root / "config" / "presets" / "smoke.yaml", tmp_path / "own.yaml"]
    found = own_command(
        through_uv=False, through_conda=False, files=files, values=[], root=root
    )
    assert found == "dpfedbench run --preset smoke {target} --configfile own.yaml"


@pytest.mark.parametrize(
    "target",
    [
        "results/tables/mine/table1.md",
        "results/figures/mine/privacy.png",
        "all",
        "results/export/mine/figure1.pdf",
        "results/tables/privacy.csv",
        "results/tables/mine/logs/table1.log",
        "results",
        "results/runs/a/b.csv",
        "--config",
        "results/tables/mine/provenance.json",
        "/elsewhere/tables/x.csv",
        "workshop",
        "sowhat",
    ],
)
def test_what_there_is_may_be_asked_for(target: str) -> None:
    check_targets([target], "results", ITEMS, {"train"})


@pytest.mark.parametrize(
    ("target", "near"),
    [("dp_mime", "dp_mine"), ("privcy", "privacy"), ("indx", "index")],
)
def test_a_misspelt_name_is_said_with_the_nearest(target: str, near: str) -> None:
    with pytest.raises(
        BenchError, match=rf"^there is no target {target}: did you mean {near}\?$"
    ):
        check_targets(
            ["--cores", "all", target],
            "results",
            {("dp-mine", "table1"): True},
            {"train", "privacy"},
        )
    for words in (
        [f"--cores={target}"],
        ["--cores", target],
        ["--until", "train", target],
        ["dp_mine", "train"],
    ):
        check_targets(
            words, "results", {("dp-mine", "table1"): True}, {"train", "privacy"}
        )


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("results/export/mine/table1.pdf", "results/export/mine/figure1.pdf"),
        ("results/export/mine/figure2.pdf", "results/export/mine/figure1.pdf"),
        ("results/figures/mine/table1.png", "results/figures/mine/figure1.png"),
        ("results/tables/mien/table1.csv", "results/tables/mine/table1.csv"),
    ],
)
def test_what_nothing_makes_is_one_line(target: str, near: str) -> None:
    with pytest.raises(BenchError) as caught:
        check_targets([target], "results", ITEMS, {"train"})
    assert (
        str(caught.value)
        == f"nothing makes {target}: the nearest that can be made is {near}"
    )


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            ("train", "a"),
            (
                "experiments.train: the workflow itself has a target of this name,"
                " choose another"
            ),
        ),
        (
            ("frontier", "a"),
            (
                "experiments.frontier: the workflow itself has a target of this name,"
                " choose another"
            ),
        ),
        (
            ("index", "a"),
            (
                "experiments.index: the workflow itself has a target of this name,"
                " choose another"
            ),
        ),
        (
            ("mine", "privacy"),
            (
                "experiments.mine.tables.privacy: the table of privacy has this name,"
                " choose another"
            ),
        ),
    ],
)
def test_names_of_the_workflow_itself_are_refused(
    place: tuple[str, str], said: str
) -> None:
    with pytest.raises(BenchError) as caught:
        check_targets([], "results", {place: True}, {"train"})
    assert str(caught.value) == said
