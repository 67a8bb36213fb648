"""The training loop: resuming, what is written down, and that noise off is the plain
method.
"""

import io
import json
import math
import os
import random
import signal
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.federation import engine
from dpfedbench.models.members import load_members
from dpfedbench.parts.client_updates import maml
from dpfedbench.parts.server.server_step import Step
from dpsum import mechanism, randomness
from dpsum.ledger import read_ledger
from dpsum.private_sum import PlainSum, PrivateSum

from .conftest import PLAIN, forking, make_config, stop_before, train

RESULTS = ("model.safetensors", "ledger.jsonl", "metrics.json")


def job(config, federation, run_dir):
    """A training process, with a checkpoint after every round and rounds long enough to
    be killed in.
    """
    step = engine._Training._round
    engine._Training._round = lambda self, index: (time.sleep(0.06), step(self, index))[
        1
    ]
    train(config, federation, run_dir, checkpoint_seconds=0.05)


def results(run_dir):
    return {name: (run_dir / name).read_bytes() for name in RESULTS}


def test_killed_at_random_moments_it_ends_with_the_same_bits(federation, tmp_path):
    config = make_config()
    train(config, federation, tmp_path / "undisturbed")
    context, moments = forking(), random.Random(1)
    kills, run_dir = 0, tmp_path / "killed"
    for attempt in range(60):
        process = context.Process(target=job, args=(config, federation, run_dir))
        process.start()
        if kills < 6:
            # Count from the moment the run is at work, or the kills would hit the
            # imports only.
            deadline = time.monotonic() + 60
            before = (
                (run_dir / "checkpoint" / "lock").stat().st_mtime_ns if attempt else 0
            )
            while process.is_alive() and time.monotonic() < deadline:
                lock = run_dir / "checkpoint" / "lock"
                if lock.exists() and lock.stat().st_mtime_ns != before:
                    break
                time.sleep(0.005)
            time.sleep(moments.uniform(0.0, 0.12))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert process.exitcode == 0
    assert kills >= 5
    assert results(run_dir) == results(tmp_path / "undisturbed")
    assert not (run_dir / "checkpoint").exists()
    assert [path for path in run_dir.rglob("*") if ".part" in path.name] == []


COSINE = {"server": {"schedule": {"kind": "cosine", "final_rate": 0.001}}}
MOMENTUM = {"server": {"optimizer": {"kind": "sgd", "momentum": 0.9}}}
QUANTILE = {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}


@pytest.mark.parametrize(
    "overlay", [{}, {"server": {"optimizer": "sgd"}}, MOMENTUM, PLAIN, QUANTILE, COSINE]
)
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    federation, tmp_path, monkeypatch, overlay
):
    config = make_config(overlay)
    train(config, federation, tmp_path / "whole")

    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 5)):
        train(config, federation, tmp_path / "resumed", checkpoint_seconds=0)
    # The ledger may be ahead of the checkpoint, and its last line torn.
    ledger = tmp_path / "resumed" / "checkpoint" / "ledger.jsonl"
    if config.private:
        with open(ledger, "a", encoding="utf-8") as handle:
            handle.write(
                ledger.read_text().splitlines()[-1].replace('"round": 4', '"round": 5')
                + '\n{"round": 6, "na'
            )
    train(config, federation, tmp_path / "resumed")
    assert results(tmp_path / "resumed") == results(tmp_path / "whole")
    assert (
        json.loads((tmp_path / "resumed" / "training.json").read_text())["resumed"] == 1
    )


def test_threads_change_no_bit(federation, tmp_path):
    train(make_config(), federation, tmp_path / "one", threads=1)
    train(make_config(), federation, tmp_path / "three", threads=3)
    assert results(tmp_path / "one") == results(tmp_path / "three")


def test_without_noise_and_clipping_it_is_the_plain_method(
    federation, tmp_path, monkeypatch
):
    """Property 5. C = infinity and z = 0 cannot be asked for; put in place of the
    private sum, bits are equal.
    """

    class Off(PrivateSum):
        _limit = math.inf

        def _noised(self, total, generator):
            return total

    train(make_config(PLAIN), federation, tmp_path / "plain")
    monkeypatch.setattr(mechanism, "PrivateSum", Off)
    train(make_config(), federation, tmp_path / "off")
    plain, off = (
        load_file(tmp_path / name / "model.safetensors") for name in ("plain", "off")
    )
    assert all(np.array_equal(plain[name], off[name]) for name in plain)


def test_the_ledger_says_what_was_done(federation, tmp_path, monkeypatch):
    """Property 6. Every sum that was released is in the ledger with the values of the
    mechanism that ran.
    """
    done = []
    release = PrivateSum.release

    def spy(self, generator):
        done.append((self.noise_multiplier, self.threshold, self.count))
        return release(self, generator)

    monkeypatch.setattr(PrivateSum, "release", spy)
    train(make_config(), federation, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [
        (event.noise_multiplier, event.threshold, event.sampler["cohort"])
        for event in ledger
    ] == done
    assert [event.round for event in ledger] == list(range(12))
    assert all(
        event.noise_std == event.noise_multiplier * event.threshold for event in ledger
    )
    assert all(
        event.sensitivity == event.threshold and event.denominator == 4
        for event in ledger
    )
    assert len({event.noise_stream for event in ledger}) == 12
    assert (
        len({event.threshold for event in ledger}) > 1
    )  # the rule moved it, and the ledger followed


def test_each_round_draws_noise_of_its_own(federation, tmp_path, monkeypatch):
    """Property 2: no stream of noise is used twice, and the ledger names the one that
    was.
    """
    streams, named = [], randomness.stream
    monkeypatch.setattr(
        randomness, "stream", lambda *name: streams.append(name) or named(*name)
    )
    train(make_config(), federation, tmp_path)
    noises = ["/".join(map(str, name)) for name in streams if name[1] == "noise"]
    assert len(noises) == len(set(noises)) == 12
    assert noises == [
        event.noise_stream for event in read_ledger(tmp_path / "ledger.jsonl")
    ]


def test_the_step_is_the_release_over_the_public_denominator(
    federation, tmp_path, monkeypatch
):
    """Property 8. Under Poisson participation cohorts differ, the denominator does not,
    and no round is left out.
    """
    seen, steps = [], []
    release, step = PrivateSum.release, Step.step

    def spy_release(self, generator):
        out = release(self, generator)
        seen.append((self.count, out.copy()))
        return out

    def spy_step(self, theta, mean, *args, **named):
        steps.append(mean.clone())
        return step(self, theta, mean, *args, **named)

    monkeypatch.setattr(PrivateSum, "release", spy_release)
    monkeypatch.setattr(Step, "step", spy_step)
    config = make_config(
        {"participation": {"kind": "poisson", "cohort": 2, "rounds": 12}}
    )
    train(config, federation, tmp_path)
    counts = [count for count, _ in seen]
    assert 0 in counts and max(counts) > 1
    for (_, released), moved in zip(seen, steps, strict=True):
        assert np.array_equal(moved, released / 2.0)
        assert np.abs(released).min() > 0


def test_private_runs_write_nothing_that_no_noise_protects(federation, tmp_path):
    train(make_config(), federation, tmp_path / "private")
    history = pd.read_csv(tmp_path / "private" / "history.csv")
    assert history["loss"].isna().all()
    assert not [name for name in history.columns if name.startswith("norm_")]
    train(make_config(PLAIN), federation, tmp_path / "plain")
    history = pd.read_csv(tmp_path / "plain" / "history.csv")
    assert history["loss"].notna().all() and history["norm_q50"].notna().all()
    assert (tmp_path / "plain" / "ledger.jsonl").read_bytes() == b""


def test_models_are_kept_by_validation_every_so_many_rounds_and_after_the_last(
    federation, tmp_path, monkeypatch
):
    """Of accuracies 40, 70 and 55 in rounds 5, 10 and 11, the last, the two best are
    kept, the best first.
    """
    accuracies, seen = iter((40.0, 70.0, 55.0)), []

    def validate(self, theta):
        seen.append(theta.copy())
        return {"validation_accuracy": next(accuracies), "validation_loss": 1.0}

    monkeypatch.setattr(FewShotMeasures, "validate", validate)
    config = make_config({"validation": {"every": 5}, "participation": {"rounds": 11}})
    train(config, federation, tmp_path)
    history = (
        pd.read_csv(tmp_path / "history.csv")
        .set_index("round")["validation_accuracy"]
        .dropna()
    )
    assert history.to_dict() == {5: 40.0, 10: 70.0, 11: 55.0}
    kept = json.loads((tmp_path / "training.json").read_text())["members"]
    assert kept == [{"round": 10, "accuracy": 0.7}, {"round": 11, "accuracy": 0.55}]
    members = load_members(tmp_path / "model.safetensors", config.net((16, 16, 1), 6))
    assert [np.array_equal(*pair) for pair in zip(members, seen[1:], strict=True)] == [
        True,
        True,
    ]


def test_not_finite_contributions_count_as_zero_and_are_reported(
    federation, tmp_path, monkeypatch, capsys
):
    """Property 15: on a terminal, and in no log."""
    contributions = maml._Tasks.contributions

    def poisoned(self, *args):
        for gradients, losses, accuracies in contributions(self, *args):
            gradients[0, 0] = float("nan")
            gradients[1, 0] = float("inf")
            yield gradients, losses, accuracies

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(maml._Tasks, "contributions", poisoned)
    monkeypatch.setattr(sys, "__stderr__", Terminal())
    train(make_config({"participation": {"rounds": 1}}), federation, tmp_path)
    assert "2 contributions were not finite" in sys.__stderr__.getvalue()
    assert "finite" not in capsys.readouterr().err
    assert all(
        np.isfinite(tensor).all()
        for tensor in load_file(tmp_path / "model.safetensors").values()
    )
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == 1


def test_a_damaged_checkpoint_is_refused(federation, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(BenchError, match=r"cannot be read.*delete it"):
        train(make_config(), federation, tmp_path)


def test_a_foreign_checkpoint_is_refused(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(engine.shutil, "rmtree", lambda *args, **kwargs: None)
    train(make_config({"participation": {"rounds": 2}}), federation, tmp_path)
    with pytest.raises(BenchError, match="belongs to another run"):
        train(make_config({"participation": {"rounds": 3}}), federation, tmp_path)


def test_a_gpu_that_was_asked_for_and_is_not_there_is_named(
    federation, tmp_path, monkeypatch
):
    """A node without the asked GPU: nothing is written, and the CPU does not quietly
    take its place.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data, clients = federation
    with pytest.raises(
        BenchError,
        match=(
            r"machine\.device is cuda, but torch finds no GPU on .*set"
            r" machine\.device to "
        ),
    ):
        engine.train(
            make_config(),
            data_dir=data,
            clients_dir=clients,
            run_dir=tmp_path / "run",
            device="cuda",
        )
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_named(federation, tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(BenchError, match="run"):
        train(make_config(), federation, tmp_path / "run")


def test_random_initialisation_trains_nothing(federation, tmp_path):
    config = make_config({"method": "random"})
    train(config, federation, tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""
    assert len(pd.read_csv(tmp_path / "history.csv")) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 <= metrics["ci_low"] <= metrics["accuracy"] <= metrics["ci_high"] <= 100
    assert len(metrics["per_task"]) == 6


def test_plain_sum_keeps_the_norms_it_saw():
    total = PlainSum(dimension=2)
    total.add(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    assert total.norms == [5.0, 1.0]
