"""Initial weights of a training: weights of another run or of a file, and their account."""

import hashlib

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from safetensors.numpy import load_file

from dpfedbench.breaches import notices_of, unaccounted_releases
from dpfedbench.config.initial_weights import RandomInitial
from dpfedbench.errors import BenchError
from dpfedbench.experiments.cells import named
from dpfedbench.training import accounts
from tests.dpfedbench.training.test_sums_together import gaussian, joint

from .conftest import (
    PLAIN,
    history_in,
    ledger_in,
    make_config,
    proven,
    rounds_of,
    train,
)

DELTA = 1e-3
SHORT = {"participation": {"rounds": 2}, "validation": {"every": 0}}
OWN_STREAMS = {"streams": "own"}
NORMALISED = {"model": {"normalisation": "record"}}


def start_from(run, **fields):
    return {"initial": {"kind": "run", "run": named(run), **fields}}


def public(**change):
    """Return a run without privacy on a data set that this run's clients do not hold."""
    return make_config(PLAIN, SHORT, {"dataset": "glyph-symbols"}, change)


def same_clients(method="dp-agr", **change):
    return make_config({"method": method}, SHORT, change)


def test_initial_run_has_the_seed_of_the_run_and_a_key_of_its_own():
    run = make_config(start_from(public(), public=True), {"seed": 3})
    assert run.key != make_config({"seed": 3}).key
    assert run.references == {"model.safetensors": public(seed=3)}


@pytest.mark.parametrize("change", [{}, {"method": "public-alone"}])
def test_initial_weights_are_the_first_member_of_the_other_run(
    change, federation, tmp_path
):
    ensemble = {"dataset": "other", "validation": {"every": 1, "ensemble": 2}}
    first = make_config(PLAIN, SHORT, ensemble)
    train(first, federation, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    references = {model.name: model}
    members = load_file(model)
    run = make_config(start_from(first, public=True), change or SHORT)
    if not change:
        rounds = rounds_of(run, federation, tmp_path / "run", references=references)
        theta = rounds.net.tensors(rounds.theta)
        tensors = {f"member1/{name}": theta[name].numpy() for name in theta}
    else:
        alone = train(run, federation, tmp_path / "alone", references=references)
        assert alone["ledger.jsonl"] == b""
        assert not run.private
        tensors = load_file(tmp_path / "alone" / model.name)
    assert tensors.keys() == {name for name in members if name.startswith("member1/")}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, members[name])


def test_initial_file_has_to_have_the_checksum_of_the_configuration(
    federation, tmp_path
):
    train(public(), federation, tmp_path / "first")
    path = tmp_path / "first" / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    start = {"kind": "file", "path": str(path), "sha256": digest}
    start |= {"source": "drawings", "public": True}
    run = make_config({"initial": start})
    net = rounds_of(make_config(), federation, tmp_path / "net").net
    weights = run.initial.weights(net)
    first = load_file(path)["member1/block1.weight"].ravel()[:9]
    assert np.array_equal(weights[:9], first)
    assert unaccounted_releases(run) == ()
    assert "weights of drawings, declared public" in notices_of(run)[-1]
    changed = make_config({"initial": start | {"sha256": "0" * 64}})
    with pytest.raises(BenchError, match=rf"and its SHA-256 is {digest}, but initial"):
        rounds_of(changed, federation, tmp_path / "changed")


MAIL = {"kind": "file", "path": "x", "sha256": "0" * 64, "source": "mail"}
OTHER_CLIENTS = same_clients(dataset="glyph-symbols")
UNACCOUNTED = [
    (start_from(same_clients("maml")), "learnt of glyphs without privacy"),
    (start_from(public()), "learnt of glyph-symbols without privacy"),
    (start_from(OTHER_CLIENTS), "learnt of glyph-symbols on other private data"),
    ({"initial": MAIL}, "starts from weights of mail, which no account covers"),
]


@pytest.mark.parametrize(("start", "reason"), UNACCOUNTED)
def test_initial_weights_without_an_account_leave_nothing_finite_proven(
    start, reason, federation, tmp_path, monkeypatch
):
    run = make_config(start, SHORT)
    weights = RandomInitial().weights
    monkeypatch.setattr(
        type(run.initial),
        "weights",
        lambda self, *args, **options: weights(*args, **options),
    )
    monkeypatch.setattr(accounts, "ledger_before", lambda run, references: [])
    train(run, federation, tmp_path)
    for line in ledger_in(tmp_path):
        assert line.data_dependent_threshold
        assert reason in line.reason
    proof = proven(run, tmp_path)
    assert (proof["status"], proof["epsilon_high"]) == ("void", "inf")


def test_initial_public_weights_cost_nothing(federation, tmp_path):
    train(public(), federation, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    run = make_config(start_from(public(), public=True))
    files = train(run, federation, tmp_path / "run", references={model.name: model})
    random = train(make_config(), federation, tmp_path / "random")
    assert files["model.safetensors"] != random["model.safetensors"]
    epsilon = proven(run, tmp_path / "run")["epsilon_high"]
    assert epsilon == proven(make_config(), tmp_path / "random")["epsilon_high"]
    assert epsilon == pytest.approx(gaussian(1.0, DELTA))


def proven_together(federation, tmp_path, **change):
    """Return the proven epsilon of a run (z = 1.5) and of one (z = 1) that starts from it."""
    first = same_clients(noise={"multiplier": 1.5}, **change)
    run = make_config(start_from(first), SHORT, change, OWN_STREAMS)
    train(first, federation, tmp_path / "first")
    names = ("model.safetensors", "ledger.jsonl")
    assert unaccounted_releases(run) == ()
    assert run.references == dict.fromkeys(names, first)
    references = {name: tmp_path / "first" / name for name in names}
    train(run, federation, tmp_path / "run", references=references)
    before = accounts.ledger_before(run, references)
    ledger = accounts.ledger_of(run, tmp_path / "run")
    assert len(before) == len(ledger) == first.participation.rounds
    assert len({line.noise_stream for line in (*before, *ledger)}) == 2 * len(before)
    # The rounds of this run alone would have an epsilon below that of both runs.
    history = history_in(tmp_path / "run")
    assert history[["epsilon_claimed", "epsilon_proven"]].isna().all(axis=None)
    assert history_in(tmp_path / "first")["epsilon_proven"].notna().all()
    return accounts.account_of(run, ledger, before=before).profiles["proven"]


def test_initial_private_run_on_known_blocks_is_one_gaussian_with_the_run(
    federation, tmp_path
):
    proof = proven_together(federation, tmp_path)
    expected = gaussian(joint(1.0, 1.5), DELTA)
    assert proof.epsilon_low == pytest.approx(expected, rel=1e-9)
    assert proof.epsilon_low == proof.epsilon_high
    assert "together with the run that this one rests on" in proof.explanation


def test_initial_private_run_of_secret_rounds_counts_with_the_run(federation, tmp_path):
    """The epsilon is above that of the run alone, and below that of known blocks.

    A client is in the first round of both with probability 1/144, where it is in one
    Gaussian of both. At delta this event alone costs as much as that Gaussian at 144
    delta.
    """
    secret = {"participation": {"kind": "balls-and-bins", "rounds": 12}}
    proof = proven_together(federation, tmp_path, **secret)
    alone = accounts.account_of(make_config(SHORT, secret), ledger_in(tmp_path / "run"))
    lowest = alone.profiles["proven"]
    assert lowest.epsilon_low <= proof.epsilon_low < proof.epsilon_high
    assert lowest.epsilon_high < proof.epsilon_high < gaussian(joint(1.0, 1.5), DELTA)
    assert proof.epsilon_high > gaussian(joint(1.0, 1.5), 144 * DELTA)


def test_initial_private_run_of_poisson_cohorts_is_composed_with_the_run(
    federation, tmp_path
):
    """Reference: dp_accounting's composition of two Poisson-sampled Gaussians."""
    poisson = {"participation": {"kind": "poisson"}}
    proof = proven_together(federation, tmp_path, **poisson)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for z in (1.0, 1.5):
        event = dp_event.PoissonSampledDpEvent(4 / 48, dp_event.GaussianDpEvent(z))
        accountant.compose(event, 2)
    expected = accountant.get_epsilon(DELTA)
    assert proof.epsilon_low <= proof.epsilon_high
    assert proof.epsilon_low == pytest.approx(expected, abs=2e-3)
    assert proof.epsilon_high == pytest.approx(expected, abs=2e-3)


GLYPHS = public(dataset="glyphs")
OF_PRIVATE = public(**start_from(same_clients("maml"), public=True))
FEWER_CLIENTS = same_clients(clients={"count": 24}, participation={"cohort": 2})
SECOND = same_clients(**OWN_STREAMS, **start_from(same_clients()))
TWO_SUMS = same_clients("dp-agrlr", **NORMALISED)
BUDGET = {"budget": {"epsilon": 20.0}}
REFUSED = {
    r"^initial\.public is true, but .* on glyphs": start_from(GLYPHS, public=True),
    "^initial.public is true, but maml/glyphs/": start_from(OF_PRIVATE, public=True),
    "set streams to own$": start_from(same_clients()),
    r"^budget\.epsilon is 20, but this run uses a private run": (
        start_from(same_clients()) | OWN_STREAMS | BUDGET
    ),
    "but it has other clients than this": start_from(FEWER_CLIENTS) | OWN_STREAMS,
    "which itself starts from dp-agr/glyphs/": start_from(SECOND) | OWN_STREAMS,
    "no account composes the sums of both": (
        start_from(TWO_SUMS) | OWN_STREAMS | NORMALISED
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_initial_run_that_no_account_covers_is_refused(message):
    with pytest.raises(BenchError, match=message):
        make_config(REFUSED[message])
