"""Old runs: which folders count, which are spared, and what is left afterwards."""

import fcntl
import logging
import runpy
from pathlib import Path

import pytest

from dpfedbench.pruning import old_runs, remove_run, wanted_runs

ROOT = Path(__file__).resolve().parents[1]
OLD = "dp-agr/glyphs/5way-1shot/0123456789/seed3"
WANTED = "dp-agr/glyphs/5way-1shot/0123456789/seed0"


def make(runs: Path, folder: str, config: str | None = None) -> Path:
    method, seed = folder.split("/")[0], folder.split("/seed")[-1]
    path = runs / folder
    (path / "logs").mkdir(parents=True)
    (path / "config.yaml").write_text(
        config or f"method: {method}\nseed: {seed}\n", encoding="utf-8"
    )
    (path / "model.safetensors").write_bytes(bytes(1000))
    return path


def test_only_runs_that_are_ours_and_not_wanted_count(tmp_path: Path) -> None:
    for folder in (OLD, WANTED, "maml/glyphs/5way-1shot/0123456789/seed10"):
        make(tmp_path, folder)
    make(
        tmp_path, "maml/glyphs/5way-1shot/abcdef0123/seed1", "method: other\nseed: 1\n"
    )  # another's configuration
    make(tmp_path, "maml/glyphs/5way-1shot/abcdef0123/seed2", "- a list")
    make(tmp_path, "maml/glyphs/5way-1shot/not-a-key/seed0")
    make(tmp_path, "thesis/chapters/one/two/three")  # somebody put something else there
    (tmp_path / "maml/glyphs/5way-1shot/abcdef0123/seed4").mkdir()  # no configuration
    outside = make(tmp_path / "outside", "maml/glyphs/5way-1shot/abcdef0123/seed5")
    (tmp_path / "maml/glyphs/5way-1shot/abcdef0123/seed5").symlink_to(outside)
    found = old_runs(tmp_path, {WANTED})
    assert [run.folder for run in found] == [
        OLD,
        "maml/glyphs/5way-1shot/0123456789/seed10",
    ]
    assert [run.size for run in found] == [
        1000 + len("method: dp-agr\nseed: 3\n"),
        1000 + len("method: maml\nseed: 10\n"),
    ]


def test_a_removed_run_leaves_no_empty_folder_and_no_other_run_is_touched(
    tmp_path: Path,
) -> None:
    make(tmp_path, OLD)
    kept = make(tmp_path, WANTED)
    lonely = "maml/glyphs/5way-1shot/0123456789/seed1"
    make(tmp_path, lonely)
    assert remove_run(tmp_path, OLD) and remove_run(tmp_path, lonely)
    assert sorted(path.name for path in kept.iterdir()) == [
        "config.yaml",
        "logs",
        "model.safetensors",
    ]
    assert [
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_dir()
    ][-2:] == [
        WANTED,
        f"{WANTED}/logs",
    ]
    assert not (tmp_path / "maml").exists()


def test_a_run_under_training_is_spared(tmp_path: Path) -> None:
    lock = make(tmp_path, OLD) / "checkpoint" / "lock"
    lock.parent.mkdir()
    with open(lock, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert [run.busy for run in old_runs(tmp_path, set())] == [True]
        assert not remove_run(tmp_path, OLD)
        assert (tmp_path / OLD / "model.safetensors").exists()
    assert [run.busy for run in old_runs(tmp_path, set())] == [
        False
    ]  # a lock that nobody holds is a file
    assert remove_run(tmp_path, OLD) and not (tmp_path / OLD).exists()


def test_what_a_killed_pruning_left_is_found_again(tmp_path: Path) -> None:
    make(tmp_path, OLD)
    (tmp_path / OLD).rename(tmp_path / f"{OLD}.pruned")
    (tmp_path / f"{OLD}.pruned" / "config.yaml").unlink()
    assert [run.folder for run in old_runs(tmp_path, {OLD})] == [f"{OLD}.pruned"]
    make(tmp_path, OLD)
    assert remove_run(tmp_path, OLD) and not list(tmp_path.iterdir())


def test_every_preset_is_wanted() -> None:
    """The counts are those that `snakemake --dry-run` gives for each preset: see
    tests/workflow/test_dag.py.
    """
    wanted = wanted_runs(ROOT)
    data = {folder.split("/")[1] for folder in wanted}
    assert {
        "glyphs",
        "digits",
        "omniglot",
        "fashion-mnist",
        "cifar-fs",
        "mini-imagenet",
    } <= data


@pytest.mark.parametrize("delete", [False, True])
def test_the_script_lists_and_removes_only_if_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delete: bool
) -> None:
    make(tmp_path, OLD)
    make(tmp_path, WANTED)
    prune = runpy.run_path(str(ROOT / "workflow" / "scripts" / "prune.py"))["prune"]
    with caplog.at_level(logging.INFO):
        prune(tmp_path, ROOT, [WANTED], delete, logging.getLogger("prune"))
    assert (tmp_path / OLD).exists() != delete and (tmp_path / WANTED).exists()
    said = caplog.messages
    assert len(said) == 2 and OLD in said[0] and WANTED not in " ".join(said)
    assert said[1].startswith(
        "1 runs removed"
        if delete
        else "1 runs that no table or figure of any preset needs"
    )
