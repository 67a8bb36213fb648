"""Where training starts: keys, weights, what the account makes of it, and what is
refused.
"""

import hashlib
import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedbench.errors import BenchError
from dpfedbench.experiments.expand import named
from dpfedbench.federation.accounts import account_of, ledger_before, ledger_of
from dpfedbench.settings.run import RandomInitial
from tests.dpfedbench.federation.test_sums_together import gaussian, joint

from .conftest import LOTS, PLAIN, RUN, accounted, make_config, rounds_of, train

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
    members = load_file(model)
    run = make_config(start_from(first, public=True), change or SHORT)
    rounds = rounds_of(
        run, federation, tmp_path / "run", references={model.name: model}
    )
    tensors = rounds.net.tensors(rounds.theta)
    assert {f"member1/{name}" for name in tensors} < set(members)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), members[f"member1/{name}"])
    if change:
        files = train(
            run, federation, tmp_path / "alone", references={model.name: model}
        )
        assert files["ledger.jsonl"] == b"" and not run.private
        assert load_file(tmp_path / "alone" / model.name).keys() == {
            f"member1/{name}" for name in tensors
        }


def test_a_file_is_read_if_it_is_the_one_that_was_named(federation, tmp_path):
    train(public(), federation, tmp_path / "first")
    path = tmp_path / "first" / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    start = {
        "kind": "file",
        "path": str(path),
        "sha256": digest,
        "source": "drawings",
        "public": True,
    }
    run = make_config({"initial": start})
    weights = run.initial.weights(
        run, rounds_of(make_config(), federation, tmp_path / "net").net, {}
    )
    assert np.array_equal(
        weights[:9], load_file(path)["member1/block1.weight"].ravel()[:9]
    )
    assert (
        run.unaccounted == ()
        and "weights of drawings, declared public" in run.notices[-1]
    )
    for change, said in (
        (
            {"sha256": "0" * 64},
            rf"and its SHA-256 is {digest}, but initial\.sha256 is 0000",
        ),
        ({"path": str(tmp_path / "none")}, r"cannot be read \(No such file"),
    ):
        with pytest.raises(BenchError, match=said):
            rounds_of(
                make_config({"initial": start | change}), federation, tmp_path / "other"
            )


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (lambda: start_from(same_clients("maml")), "learnt of glyphs without privacy"),
        (lambda: start_from(public()), "learnt of glyph-symbols without privacy"),
        (
            lambda: start_from(same_clients(dataset="glyph-symbols")),
            "learnt of glyph-symbols on other private data",
        ),
        (
            lambda: {
                "initial": {
                    "kind": "file",
                    "path": "x",
                    "sha256": "0" * 64,
                    "source": "mail",
                }
            },
            "training starts from weights of mail, for which there is no account",
        ),
    ],
)
def test_nothing_finite_holds_of_private_data_without_an_account(
    start, reason, federation, tmp_path, monkeypatch
):
    run = make_config(start(), SHORT)
    assert any(reason in said for said in run.unaccounted)
    monkeypatch.setattr(
        type(run.initial),
        "weights",
        lambda self, run, net, files: net.initial(np.random.default_rng(0)),
    )
    monkeypatch.setattr(
        "dpfedbench.federation.accounts.ledger_before", lambda run, references: []
    )
    train(run, federation, tmp_path)
    lines = [
        json.loads(line)
        for line in (tmp_path / "ledger.jsonl").read_text().splitlines()
    ]
    assert all(
        line["data_dependent_threshold"] and reason in line["reason"] for line in lines
    )
    holds = accounted(run, tmp_path)["profiles"]["holds"]
    assert holds["epsilon_high"] == "inf" and holds["status"] == "void"


def test_a_public_start_costs_nothing(federation, tmp_path):
    train(public(), federation, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    run = make_config(start_from(public(), public=True))
    random, started = (
        train(make_config(), federation, tmp_path / "a"),
        train(run, federation, tmp_path / "b", references={model.name: model}),
    )
    assert random["model.safetensors"] != started["model.safetensors"]
    # Thresholds follow releases, and so the weights; what counts for the account is the
    # same line by line.
    for one, other in zip(
        ledger_of(make_config(), tmp_path / "a"),
        ledger_of(run, tmp_path / "b"),
        strict=True,
    ):
        assert (
            one.noise_multiplier == other.noise_multiplier
            and one.sampler == other.sampler
        )
        assert not other.data_dependent_threshold
    one, other = (
        accounted(make_config(), tmp_path / name)["profiles"]["holds"]["epsilon_high"]
        for name in "ab"
    )
    assert one == other


def composed(run, first, federation, tmp_path):
    """What holds of a run that starts from a private one on the same clients."""
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
    run = make_config(start_from(first), SHORT, {"streams": "own"})
    assert run.stream_seed != first.stream_seed
    names = {
        line["noise_stream"]
        for at, config in (("a", first), ("b", run))
        for line in map(json.loads, _lines(config, federation, tmp_path / at, tmp_path))
    }
    assert len(names) == 4


def _lines(run, federation, folder, root):
    files = (
        {}
        if run.initial == RandomInitial()
        else {"model.safetensors": root / "a" / "model.safetensors"}
    )
    return (
        train(run, federation, folder, references=files)["ledger.jsonl"]
        .decode()
        .splitlines()
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda: start_from(public(dataset="glyphs"), public=True),
            r"^initial\.public is true, but .* on glyphs",
        ),
        (lambda: start_from(same_clients()), r"set streams to own$"),
        (
            lambda: (
                start_from(same_clients())
                | {"streams": "own", "budget": {"epsilon": 20.0}}
            ),
            r"^budget\.epsilon is 20, but this run uses a private run",
        ),
        (
            lambda: start_from(public(model={"filters": 8}), public=True),
            "other sizes or another last layer",
        ),
        (
            lambda: start_from(public(task={"ways": 5}), public=True),
            "other sizes or another last layer",
        ),
        (
            lambda: (
                start_from(
                    same_clients(clients={"count": 24}, participation={"cohort": 2})
                )
                | {"streams": "own"}
            ),
            "but it has other clients than this run",
        ),
        (
            lambda: start_from(public(**start_from(same_clients("maml"))), public=True),
            "which itself starts from maml/glyphs/",
        ),
        (
            lambda: start_from(
                public(**start_from(same_clients("maml"), public=True)), public=True
            ),
            "^initial.public is true, but maml/glyphs/",
        ),
        (
            lambda: (
                start_from(same_clients(streams="own", **start_from(same_clients())))
                | {"streams": "own"}
            ),
            "which itself starts from dp-agr/glyphs/",
        ),
        (
            lambda: (
                start_from(same_clients("dp-agrlr", model={"normalisation": "record"}))
                | {"streams": "own", "model": {"normalisation": "record"}}
            ),
            "no analysis puts the sums of both together",
        ),
        (
            lambda: {"method": "random"} | start_from(public(), public=True),
            'is "run": expected one of',
        ),
        (
            lambda: {"method": "public-alone"},
            r"^initial\.kind is random, but public-alone",
        ),
        (
            lambda: {"method": "public-alone"} | start_from(public()),
            r"set initial\.public to true",
        ),
        (
            lambda: (
                start_from(public())
                | {"initial": {"kind": "run", "run": {"method": "none"}}}
            ),
            "no such method",
        ),
    ],
)
def test_what_no_account_is_of_is_refused_when_the_plan_is_read(change, said):
    with pytest.raises(BenchError, match=said):
        make_config(change())


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
    base = {
        "method": "adap-dp-fl",
        "participation": {"rounds": 2},
        "clipping": {"kind": "norm-of-release", "threshold": None},
    }
    first = make_config(
        {"method": "fedavg", "dataset": "other", "participation": {"rounds": 2}},
        general=LOTS,
    )
    train(first, silos, tmp_path / "first")
    model = tmp_path / "first" / "model.safetensors"
    run = make_config(base, start_from(first, public=True), general=LOTS)
    thresholds = []
    for name, config, files in (
        ("a", make_config(base, general=LOTS), {}),
        ("b", run, {model.name: model}),
    ):
        train(config, silos, tmp_path / name, references=files)
        thresholds.append(
            json.loads((tmp_path / name / "ledger.jsonl").read_text().splitlines()[0])[
                "threshold"
            ][0]
        )
    assert thresholds[0] != thresholds[1] and all(
        0 < each < math.inf for each in thresholds
    )
