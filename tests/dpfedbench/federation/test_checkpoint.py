"""Checkpoints that were damaged, and the lock of a run's folder: who comes second takes
what the first one finished.
"""

import fcntl
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.federation import engine
from dpfedbench.federation.checkpoint import Checkpoint, run_lock

from .conftest import forking, make_config, stop_before, train


def test_any_flipped_byte_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Most of them would load, and change the model."""
    checkpoint = Checkpoint(tmp_path, identity={"run": "0123456789"}, seconds=0)
    checkpoint.save({"theta": torch.arange(300.0), "round": 3})
    loaded = checkpoint.load()
    assert loaded is not None and torch.equal(loaded["theta"], torch.arange(300.0))
    whole = checkpoint.path.read_bytes()
    for place in [*range(40), *range(40, len(whole), 7)]:
        checkpoint.path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        )
        with pytest.raises(
            BenchError,
            match=r"state\.pt is damaged .*: delete it to train from the start",
        ):
            checkpoint.load()
    for length in (0, 10, 32, len(whole) - 1):
        checkpoint.path.write_bytes(whole[:length])
        with pytest.raises(BenchError, match=r"state\.pt is damaged"):
            checkpoint.load()


def test_a_training_does_not_go_on_after_a_ledger_that_was_cut(
    federation: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config({"participation": {"rounds": 4}})
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train(config, federation, tmp_path, checkpoint_seconds=0)
    ledger = tmp_path / "checkpoint" / "ledger.jsonl"
    whole = ledger.read_bytes()
    for damaged in (
        whole[: whole[:-1].rfind(b"\n") + 1],
        whole.replace(b'"threshold": 0.5', b'"threshold": 0.6', 1),
    ):
        assert damaged != whole
        ledger.write_bytes(damaged)
        with pytest.raises(BenchError, match=r"checkpoint/ledger\.jsonl.*delete the"):
            train(config, federation, tmp_path)
    ledger.write_bytes(whole + b'{"round": 3, "na')  # what a kill leaves is no damage
    train(config, federation, tmp_path)


def hold(folder: Path, held: Event, release: Event) -> None:
    with run_lock(folder):
        held.set()
        release.wait(60)


def test_the_second_says_whom_it_waits_for_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = forking()
    held, release = context.Event(), context.Event()
    first = context.Process(target=hold, args=(tmp_path / "checkpoint", held, release))
    first.start()
    try:
        assert held.wait(600)
        threading.Timer(0.3, release.set).start()
        with run_lock(tmp_path / "checkpoint") as waited:
            assert waited and release.is_set()
    finally:
        release.set()
        first.join()
    assert f"process {first.pid} on " in capsys.readouterr().err


def test_a_lock_whose_folder_was_taken_away_is_taken_anew(tmp_path: Path) -> None:
    """The first one removes the folder when it finishes; a lock on a removed file would
    let a third one in.
    """
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    old = open(folder / "lock", "w", encoding="utf-8")  # noqa: SIM115
    fcntl.flock(old, fcntl.LOCK_EX)
    second_holds = threading.Event()

    def second() -> None:
        with run_lock(folder) as waited:
            assert waited
            second_holds.set()
            with (
                open(folder / "lock", encoding="utf-8") as third,
                pytest.raises(BlockingIOError),
            ):
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.2)
    (folder / "lock").unlink()
    folder.rmdir()
    old.close()
    thread.join(60)
    assert second_holds.is_set() and not thread.is_alive()


def test_what_the_first_one_finished_is_not_trained_again(
    federation: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, clients = federation
    config = make_config({"participation": {"rounds": 2}})

    def train() -> None:
        engine.train(config, data_dir=data, clients_dir=clients, run_dir=tmp_path)

    train()
    model = tmp_path / "model.safetensors"
    written, lock = model.stat().st_mtime_ns, engine.run_lock

    def after_waiting(folder: Path):  # type: ignore[no-untyped-def]
        class Waited:
            def __enter__(self) -> bool:
                self.lock = lock(folder)
                self.lock.__enter__()
                return True

            def __exit__(self, *error: object) -> None:
                self.lock.__exit__(*error)  # type: ignore[arg-type]

        return Waited()

    monkeypatch.setattr(engine, "run_lock", after_waiting)
    train()
    assert (
        model.stat().st_mtime_ns == written and not (tmp_path / "checkpoint").exists()
    )
    assert "was finished by the process waited for" in capsys.readouterr().err
    # Half of it, as of one that was killed there, is trained again.
    (tmp_path / "training.json").unlink()
    train()
    assert model.stat().st_mtime_ns != written


def test_a_foreign_checkpoint_is_refused(
    federation: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config({"participation": {"rounds": 2}})
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 1)):
        train(config, federation, tmp_path, checkpoint_seconds=0)
    with pytest.raises(BenchError, match="belongs to another run"):
        train(make_config({"participation": {"rounds": 3}}), federation, tmp_path)
