"""Reminders of easily overlooked settings when training starts."""

from dpfedbench.training.client_updates.maml import QUERY, SUPPORT

from .conftest import difference_config, ledger_in, make_config, train, training_in
from .test_within_task import AGRLR


def test_reminder_names_the_shots_of_clients_and_of_the_test():
    config = make_config({"task": {"shots": 2}})
    assert config.reminders == (
        "clients train with 1 support examples of a class (clients.support_per_class);"
        " task.shots, 2, is of the meta-test alone",
    )
    assert make_config().reminders == ()
    assert difference_config().reminders == ()


def test_reminder_is_printed_and_in_no_result(federation, tmp_path, capsys):
    run = make_config({"task": {"shots": 2}, "participation": {"rounds": 1}})
    train(run, federation, tmp_path)
    assert f"note: {run.reminders[0]}\n" in capsys.readouterr().err
    assert run.reminders[0] not in training_in(tmp_path)["notices"]


def test_calibrated_noise_is_printed(silos, tmp_path, capsys):
    run = difference_config({"budget": {"epsilon": 3.0}, "noise": {"multiplier": None}})
    train(run, silos, tmp_path)
    z = ledger_in(tmp_path)[0].noise_multiplier
    reminder = f"model-difference-sum the noise multiplier {z:.6g}\n"
    assert reminder in capsys.readouterr().err
    assert training_in(tmp_path)["noise_multiplier"] == z


def test_noise_of_clients_own_sums_is_printed(federation, tmp_path, capsys):
    run = make_config(AGRLR, {"participation": {"rounds": 1}})
    train(run, federation, tmp_path)
    multipliers = {line.name: line.noise_multiplier for line in ledger_in(tmp_path)}
    printed = capsys.readouterr().err
    for name in (SUPPORT, QUERY):
        assert f"{name} the noise multiplier {multipliers[name]:.6g}\n" in printed


def test_given_noise_is_not_printed_again(silos, tmp_path, capsys):
    train(difference_config(), silos, tmp_path)
    assert "note:" not in capsys.readouterr().err
