"""The arguments of `dpfedbench run`: experiment files, presets, values, and Snakemake's."""

import pytest

from dpfedbench.command import snakemake_words
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import choose_experiments
from tests.calls import ROOT

SNAKEFILE = ["--snakefile", str(ROOT / "Snakefile")]
SMOKE = str(ROOT / "config/presets/smoke.yaml")


def test_run_of_a_file_chooses_its_experiments() -> None:
    chosen = ["--configfile", "mine.yaml", "--config", "only=own", *SNAKEFILE]
    assert snakemake_words(["run", "mine.yaml"]) == chosen
    dry = snakemake_words(["run", "-n", "mine.yaml", "--cores", "2"])
    assert dry == [*chosen, "-n", "--cores", "2"]
    # A file of results is a target.
    target = "results/runs/dp-agr/glyphs/5way-1shot/0123456789/seed0/config.yaml"
    assert snakemake_words(["run", target]) == [*SNAKEFILE, target]


def test_run_lays_the_file_over_the_preset_and_takes_values_of_both_options() -> None:
    """An option takes every word up to the next: what is no value is not lost."""
    given = "run --preset smoke --config seeds=[1] mine.yaml cost -C data.local_dir=x"
    words = snakemake_words([*given.split(), "--configfile", "more.yaml", "-q"])
    assert words == [
        *("--configfile", SMOKE, "mine.yaml", "more.yaml"),
        *("--config", "seeds=[1]", "data.local_dir=x", "only=own"),
        *SNAKEFILE,
        *("cost", "-q"),
    ]


def test_run_has_a_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        snakemake_words(["run", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: dpfedbench run [FILE.yaml ...]")
    assert "results/experiments/NAME/" in text
    assert "--rerun-triggers" not in text


def test_experiments_of_the_users_files_are_those_with_a_title(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    planned = ["dp-maml", "mine", "theirs"]
    made = "{mine: {title: Mine}, theirs: {title: Theirs}, dp-maml: {seeds: [0]}}"
    file.write_text(f"experiments: {made}", encoding="utf-8")
    assert choose_experiments("own", [file], planned) == ["mine", "theirs"]
    assert choose_experiments("", [file], planned) == []
    assert choose_experiments("dp-maml", [file], planned) == ["dp-maml"]
    with pytest.raises(BenchError, match="no experiment yours has a table"):
        choose_experiments("mine,yours", [file], planned)
    file.write_text("experiments: {dp-maml: {seeds: [0]}}", encoding="utf-8")
    with pytest.raises(BenchError, match=r"mine\.yaml makes no experiment"):
        choose_experiments("own", [file], planned)
