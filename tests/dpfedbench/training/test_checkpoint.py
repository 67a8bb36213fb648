"""Damaged and foreign checkpoints, and the lock of a run's folder."""

import contextlib
import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.training import engine
from dpfedbench.training.checkpoint import Checkpoint, run_lock

from .conftest import make_config, stop_before, train_model


def test_checkpoint_with_any_flipped_byte_is_refused(tmp_path):
    """Most of these checkpoints would load, and change the model."""
    checkpoint = Checkpoint(tmp_path, identity={"run": "0123456789"}, seconds=0)
    checkpoint.save({"theta": torch.arange(300.0), "round": 3})
    assert torch.equal(checkpoint.load()["theta"], torch.arange(300.0))
    whole = checkpoint.path.read_bytes()
    damaged = [
        whole[:index] + bytes([whole[index] ^ 4]) + whole[index + 1 :]
        for index in [*range(40), *range(40, len(whole), 7)]
    ]
    damaged += [whole[:length] for length in (0, 10, 32, len(whole) - 1)]
    for content in damaged:
        checkpoint.path.write_bytes(content)
        with pytest.raises(BenchError, match=r"state\.pt is damaged .*: delete it to"):
            checkpoint.load()


def test_checkpoint_with_another_ledger_or_of_another_run_is_refused(
    federation, tmp_path, monkeypatch
):
    """Its ledger is cut, or changed. A killed process leaves half a line: no damage."""
    run = make_config({"participation": {"rounds": 4}})
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train_model(run, federation, tmp_path, checkpoint_seconds=0)
    ledger = tmp_path / "checkpoint" / "ledger.jsonl"
    whole = ledger.read_bytes()
    for damaged in (
        whole[: whole[:-1].rfind(b"\n") + 1],
        whole.replace(b'"threshold": 0.5', b'"threshold": 0.6', 1),
    ):
        assert damaged != whole
        ledger.write_bytes(damaged)
        with pytest.raises(BenchError, match=r"checkpoint/ledger\.jsonl.*delete the"):
            train_model(run, federation, tmp_path)
    ledger.write_bytes(whole + b'{"round": 3, "na')
    shorter = make_config({"participation": {"rounds": 3}})
    with pytest.raises(BenchError, match="belongs to another run"):
        train_model(shorter, federation, tmp_path)
    train_model(run, federation, tmp_path)


def test_run_lock_waits_for_the_other_process_and_names_it(tmp_path, capsys):
    """A lock is that of an open file, so that a thread stands for a process."""
    folder = tmp_path / "checkpoint"
    held = threading.Event()
    release = threading.Event()

    def hold_lock():
        with run_lock(folder):
            held.set()
            release.wait(60)

    with ThreadPoolExecutor() as pool:
        holder = pool.submit(hold_lock)
        assert held.wait(60)
        threading.Timer(0.3, release.set).start()
        with run_lock(folder) as waited:
            assert waited
            assert release.is_set()
        holder.result()
    assert f"process {os.getpid()} on " in capsys.readouterr().err


def test_run_lock_of_a_removed_folder_is_taken_anew(tmp_path):
    """The first process removes the folder when it finishes. A lock on the removed file
    would let a third process in.
    """
    lock = tmp_path / "checkpoint" / "lock"
    lock.parent.mkdir()

    def take_lock():
        with run_lock(lock.parent) as waited, open(lock, encoding="utf-8") as third:
            assert waited
            with pytest.raises(BlockingIOError):
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with ThreadPoolExecutor() as pool:
        with open(lock, "w", encoding="utf-8") as removed:
            fcntl.flock(removed, fcntl.LOCK_EX)
            second = pool.submit(take_lock)
            time.sleep(0.2)
            lock.unlink()
            lock.parent.rmdir()
        second.result(60)


def test_training_that_another_process_finished_is_not_repeated(
    federation, tmp_path, monkeypatch
):
    config = make_config({"participation": {"rounds": 2}})
    train_model(config, federation, tmp_path)
    model = tmp_path / "model.safetensors"
    written = model.stat().st_mtime_ns
    lock = engine.run_lock

    @contextlib.contextmanager
    def lock_after_waiting(folder):
        with lock(folder):
            yield True

    monkeypatch.setattr(engine, "run_lock", lock_after_waiting)
    train_model(config, federation, tmp_path)
    assert model.stat().st_mtime_ns == written
    assert not (tmp_path / "checkpoint").exists()
    # A process that was killed while it wrote leaves a part, which is trained again.
    (tmp_path / "training.json").unlink()
    train_model(config, federation, tmp_path)
    assert model.stat().st_mtime_ns != written
