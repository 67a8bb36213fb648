"""Where training starts: keys, weights, what the account makes of it, and what is
refused.
"""

import hashlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedbench.errors import BenchError
from dpfedbench.experiments.expand import named
from dpfedbench.federation.accounts import account_of, ledger_before, ledger_of
from dpfedbench.settings.run import RandomInitial
from tests.dpfedbench.federation.test_sums_together import gaussian, joint

from .conftest import (
    LOTS,
    PLAIN,
    RUN,
    ledger_in,
    make_config,
    proven,
    rounds_of,
    train,
)

DELTA = RUN["budget"]["delta"]
SHORT = {"participation": {"rounds": 2}, "validation": {"every": 0}}


def start_from(run, **more):
    return {"initial": {"kind": "run", "run": named(run), **more}}


def public(**change):
    """A run without privacy on a data set that this one's clients do not hold."""
    return make_config(PLAIN, SHORT, {"dataset": "glyph-symbols"}, change)


def same_clients(method="dp-agr", **change):
    return make_config({"method": method}, SHORT, change)


def test_a_random_start_moves_no_key():
    run = make_config()
    assert run.initial == RandomInitial() and "initial" not in run.identity()
    assert make_config({"initial": "random"}).key == run.key
    started = make_config(start_from(public(), public=True))
    assert started.key != run.key
    # Nor does it matter how the other run is named: with the defaults spelled out, or
    # without.
    whole = {key: value for key, value in public().plain().items() if key != "seed"}
    assert (
        make_config(
            {"initial": {"kind": "run", "public": True, "run": whole}}
        ).references
        == started.references
    )


def test_the_other_run_has_this_ones_seed_and_is_made_first():
    run = make_config(start_from(public(), public=True), {"seed": 3})
    assert run.references == {"model.safetensors": public(seed=3)}


@pytest.mark.parametrize("change", [{}, {"method": "public-alone"}])
def test_training_starts_from_the_other_runs_first_member(change, federation, tmp_path):
    first = make_config(
        PLAIN, SHORT, {"dataset": "other", "validation": {"every": 1, "ensemble": 2}}
    )
    train(first, federation, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    files = {"references": {model.name: model}}
    members = load_file(model)
    run = make_config(start_from(first, public=True), change or SHORT)
    rounds = rounds_of(run, federation, tmp_path / "run", **files)
    tensors = rounds.net.tensors(rounds.theta)
    names = {f"member1/{name}" for name in tensors}
    assert names < set(members)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), members[f"member1/{name}"])
    if change:
        alone = train(run, federation, tmp_path / "alone", **files)
        assert alone["ledger.jsonl"] == b"" and not run.private
        assert load_file(tmp_path / "alone" / model.name).keys() == names


def test_a_file_is_read_if_it_is_the_one_that_was_named(federation, tmp_path):
    train(public(), federation, tmp_path / "first")
    path = tmp_path / "first" / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    start = {"kind": "file", "path": str(path), "sha256": digest}
    start |= {"source": "drawings", "public": True}
    run = make_config({"initial": start})
    net = rounds_of(make_config(), federation, tmp_path / "net").net
    weights = run.initial.weights(run, net, {})
    first = load_file(path)["member1/block1.weight"].ravel()[:9]
    assert np.array_equal(weights[:9], first)
    assert run.unaccounted == ()
    assert "weights of drawings, declared public" in run.notices[-1]
    other = make_config({"initial": start | {"sha256": "0" * 64}})
    with pytest.raises(BenchError, match=rf"and its SHA-256 is {digest}, but initial"):
        rounds_of(other, federation, tmp_path / "other")


MAIL = {"kind": "file", "path": "x", "sha256": "0" * 64, "source": "mail"}


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (start_from(same_clients("maml")), "learnt of glyphs without privacy"),
        (start_from(public()), "learnt of glyph-symbols without privacy"),
        (
            start_from(same_clients(dataset="glyph-symbols")),
            "learnt of glyph-symbols on other private data",
        ),
        ({"initial": MAIL}, "starts from weights of mail, for which there is no acc"),
    ],
)
def test_nothing_finite_is_proven_after_private_data_without_an_account(
    start, reason, federation, tmp_path, monkeypatch
):
    run = make_config(start, SHORT)
    assert any(reason in unaccounted for unaccounted in run.unaccounted)

    def weights(self, run, net, files):
        return net.initial(np.random.default_rng(0))

    monkeypatch.setattr(type(run.initial), "weights", weights)
    monkeypatch.setattr(
        "dpfedbench.federation.accounts.ledger_before", lambda run, references: []
    )
    train(run, federation, tmp_path)
    for line in ledger_in(tmp_path):
        assert line.data_dependent_threshold and reason in line.reason
    holds = proven(run, tmp_path)
    assert (holds["epsilon_high"], holds["status"]) == ("inf", "void")


def test_a_public_start_costs_nothing(federation, tmp_path):
    """Thresholds follow releases, and so the weights; what counts for the account is
    the same line by line.
    """
    train(public(), federation, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    runs = {
        "random": (make_config(), {}),
        "started": (
            make_config(start_from(public(), public=True)),
            {model.name: model},
        ),
    }
    models, counted, epsilons = [], [], []
    for name, (run, files) in runs.items():
        folder = tmp_path / name
        trained = train(run, federation, folder, references=files)
        models.append(trained["model.safetensors"])
        counted.append(
            [
                (line.noise_multiplier, line.sampler, line.data_dependent_threshold)
                for line in ledger_of(run, folder)
            ]
        )
        epsilons.append(proven(run, folder)["epsilon_high"])
    assert models[0] != models[1]
    assert counted[0] == counted[1] and not counted[1][0][2]
    assert epsilons[0] == epsilons[1]


def composed(run, first, federation, tmp_path):
    """What is proven for a run that starts from a private one on the same clients."""
    train(first, federation, tmp_path / "first")
    files = {
        name: tmp_path / "first" / name
        for name in ("model.safetensors", "ledger.jsonl")
    }
    train(run, federation, tmp_path / "run", references=files)
    before = ledger_before(run, files)
    assert len(before) == first.participation.rounds
    return account_of(run, ledger_of(run, tmp_path / "run"), before=before).profiles[
        "holds"
    ]


def test_a_start_from_a_private_run_on_known_blocks_is_one_gaussian_with_it(
    federation, tmp_path
):
    first = same_clients(noise={"multiplier": 1.5})
    run = make_config(start_from(first), SHORT, {"streams": "own"})
    assert run.unaccounted == () and run.references == {
        "model.safetensors": first,
        "ledger.jsonl": first,
    }
    holds = composed(run, first, federation, tmp_path)
    expected = gaussian(joint(1.0, 1.5), DELTA)
    assert holds.epsilon_low == pytest.approx(expected, rel=1e-9) == holds.epsilon_high
    assert "together with the run that this one rests on" in holds.explanation


def test_of_secret_rounds_both_are_counted(federation, tmp_path):
    """Between the larger of the two alone and known blocks; and not below what 2 of z =
    1 and 1.5 are as a mixture.
    """
    secret = {"participation": {"kind": "balls-and-bins", "rounds": 12}}
    first = same_clients(noise={"multiplier": 1.5}, **secret)
    run = make_config(start_from(first), SHORT, secret, {"streams": "own"})
    holds = composed(run, first, federation, tmp_path)
    alone = account_of(
        make_config(SHORT, secret), ledger_of(run, tmp_path / "run")
    ).profiles["holds"]
    assert (
        alone.epsilon_low
        <= holds.epsilon_low
        < holds.epsilon_high
        < gaussian(joint(1.0, 1.5), DELTA)
    )
    assert holds.epsilon_high > alone.epsilon_high
    # A client is in the first round of both with a chance of 1/144, where it is one
    # Gaussian of both: at delta the event alone costs as much as this Gaussian at 144
    # delta.
    assert holds.epsilon_high > gaussian(joint(1.0, 1.5), 144 * DELTA)


def test_poisson_clients_are_composed_as_one_runs_rounds(federation, tmp_path):
    """Against dp-accounting's own composition of two Poisson-sampled Gaussians of other
    noise.
    """
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    poisson = {"participation": {"kind": "poisson"}}
    first = same_clients(noise={"multiplier": 1.5}, **poisson)
    run = make_config(start_from(first), SHORT, poisson, {"streams": "own"})
    holds = composed(run, first, federation, tmp_path)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for z in (1.0, 1.5):
        accountant.compose(
            dp_event.PoissonSampledDpEvent(4 / 48, dp_event.GaussianDpEvent(z)), 2
        )
    expected = accountant.get_epsilon(DELTA)
    assert (
        holds.epsilon_low == pytest.approx(expected, abs=2e-3)
        and holds.epsilon_low <= holds.epsilon_high
    )
    assert holds.epsilon_high == pytest.approx(expected, abs=2e-3)


def test_the_second_runs_noise_is_not_the_firsts(federation, tmp_path):
    first = same_clients()
    run = make_config(start_from(first), SHORT, OWN)
    assert run.stream_seed != first.stream_seed
    train(first, federation, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    train(run, federation, tmp_path / "run", references={model.name: model})
    lines = ledger_in(tmp_path / "first") + ledger_in(tmp_path / "run")
    assert len({line.noise_stream for line in lines}) == 4


OWN = {"streams": "own"}
NORMALISED = {"model": {"normalisation": "record"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            start_from(public(dataset="glyphs"), public=True),
            r"^initial\.public is true, but .* on glyphs",
        ),
        (start_from(same_clients()), r"set streams to own$"),
        (
            start_from(same_clients()) | OWN | {"budget": {"epsilon": 20.0}},
            r"^budget\.epsilon is 20, but this run uses a private run",
        ),
        (start_from(public(model={"filters": 8}), public=True), "another last layer"),
        (
            start_from(same_clients(clients={"count": 24}, participation={"cohort": 2}))
            | OWN,
            "but it has other clients than this run",
        ),
        (
            start_from(
                public(**start_from(same_clients("maml"), public=True)), public=True
            ),
            "^initial.public is true, but maml/glyphs/",
        ),
        (
            start_from(same_clients(**OWN, **start_from(same_clients()))) | OWN,
            "which itself starts from dp-agr/glyphs/",
        ),
        (
            start_from(same_clients("dp-agrlr", **NORMALISED)) | OWN | NORMALISED,
            "no analysis puts the sums of both together",
        ),
        (
            {"method": "public-alone"} | start_from(public()),
            r"set initial\.public to true",
        ),
    ],
)
def test_a_start_that_no_account_covers_is_refused(change, message):
    with pytest.raises(BenchError, match=message):
        make_config(change)


def test_a_public_start_may_go_on_from_another_run_on_the_same_public_data():
    """What declares the data set public says so of every run on it."""
    longer = make_config(start_from(public(**start_from(public())), public=True))
    assert longer.initial.without_account(longer) == () and longer.initial.public_for(
        longer
    )


def test_a_private_run_may_be_public_alone_for_others(federation):
    """A model that was trained with privacy on another data set may be declared public,
    as any may.
    """
    run = make_config(
        SHORT, start_from(same_clients(dataset="glyph-symbols"), public=True)
    )
    assert run.unaccounted == () and set(run.references) == {"model.safetensors"}


def test_records_may_start_from_other_records(silos, tmp_path):
    """The first threshold, which is found at the initial model, is that of the weights
    that training starts from.
    """
    clipping = {"kind": "norm-of-release", "threshold": None}
    base = {"participation": {"rounds": 2}, "clipping": clipping}
    source = {"method": "fedavg", "dataset": "other", "participation": {"rounds": 2}}
    first = make_config(source, general=LOTS)
    train(first, silos, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    started = make_config(base, start_from(first, public=True), general=LOTS)
    random = make_config(base, general=LOTS)
    train(random, silos, tmp_path / "random")
    train(started, silos, tmp_path / "started", references={model.name: model})
    thresholds = [
        ledger_in(tmp_path / name)[0].threshold[0] for name in ("random", "started")
    ]
    assert thresholds[0] != thresholds[1]
    assert min(thresholds) > 0
