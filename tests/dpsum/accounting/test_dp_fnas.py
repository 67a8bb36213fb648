"""What DP-FNAS claims and what is proven for it: halves, what other parties see, and
training after a search.
"""

import dataclasses
import functools

import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpfedbench.errors import BenchError
from dpsum.accounting.account import account
from dpsum.accounting.analyses import poisson
from dpsum.accounting.analyses.poisson import composed_ends
from dpsum.accounting.claims import GDP_OF_HALVES
from dpsum.accounting.context import AccountContext
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.ledger import Release, digest, parse

DELTA = 1e-5
CLAIMS = {"poisson-lots": GDP_OF_HALVES}
PRINTED, APPENDIX = GDP_OF_HALVES.readings.values()


def lots(parties, batch, epochs=50, half=25_000):
    """A party's chance and number of lots: lots of `batch` of its own, `epochs` times
    as many as its half has.
    """
    own = half / parties
    return batch / own, int(epochs * own / batch)


def line(
    index,
    *,
    part="training half",
    name="weights-sum",
    z=1.0,
    clients=2,
    rate=0.1,
    records=100,
    adds=2,
    rounds=3,
):
    return Release(
        round=index,
        name=name,
        mechanism="gaussian",
        unit="record",
        adjacency="zero-out",
        observer="server",
        noise_multiplier=z,
        threshold=[1.0] * clients,
        sensitivity=[1.0] * clients,
        noise_std=[z] * clients,
        dimension=3,
        denominator=rate * records,
        noise_stream="0/noise",
        counted_by_paper=True,
        data_dependent_threshold=False,
        reason="",
        part=part,
        adds=adds,
        sampler={
            "kind": "poisson-lots",
            "clients": clients,
            "records": records,
            "cohort": rate * records,
            "rounds": rounds,
            "rate": rate,
        },
    )


def search(rounds=3, *, weights=1.0, architecture=1.0, **values):
    return [
        line(index, part=part, name=name, z=z, rounds=rounds, **values)
        for index in range(rounds)
        for part, name, z in (
            ("training half", "weights-sum", weights),
            ("validation half", "architecture-sum", architecture),
        )
    ]


@pytest.mark.parametrize(
    ("batch", "parties", "limit", "printed", "holds"),
    [
        # The issue's table of claims; B = 256 is the released commands'.
        (64, 1, 1.856, 1.374, 1.907), (64, 2, 2.737, 2.020, 2.840), (64, 4, 4.065, 2.983, 4.261),
        (64, 8, 6.091, 4.437, 6.435), (256, 1, 4.065, 2.983, 4.261), (256, 2, 6.091, 4.437, 6.435),
        (256, 4, 9.238, None, 9.748), (256, 8, 14.235, None, 14.727),
    ],
)  # fmt: skip
def test_the_claims_of_table_1(batch, parties, limit, printed, holds):
    rate, rounds = lots(parties, batch)
    schedule, sampler = ((1.0, rounds),), {"rate": rate}
    assert GDP_OF_HALVES.epsilon(schedule, sampler, DELTA) == pytest.approx(
        limit, abs=6e-4
    )
    if printed is not None:
        assert PRINTED(schedule, sampler, DELTA) == pytest.approx(printed, abs=6e-4)
    assert poisson.upper_epsilon(schedule, rate, DELTA) == pytest.approx(
        holds, rel=3e-4
    )


@pytest.mark.parametrize(
    ("variance", "holds"),
    [(0.5, 9.62), (1, 4.26), (2, 2.39), (5, 1.30), (8, 0.98), (10, 0.86)],
)
def test_the_variances_of_table_2(variance, holds):
    """Four parties; sigma is the root of the variance."""
    rate, rounds = lots(4, 64)
    assert poisson.upper_epsilon(
        ((variance**0.5, rounds),), rate, DELTA
    ) == pytest.approx(holds, abs=6e-3)


def test_the_appendix_has_a_third_formula():
    """T e^(1/sigma^2) - 1 under the root, worked out by hand for one case: mu = q (T e
    - 1)^1/2.
    """
    mu = 0.01 * (100 * 2.718281828459045 - 1) ** 0.5
    assert APPENDIX(((1.0, 100),), {"rate": 0.01}, DELTA) == pytest.approx(
        gaussian_epsilon(1 / mu, DELTA)
    )


def test_known_batches_are_refused_under_a_poisson_claim():
    """Each record once an epoch in a batch that is known: 50 Gaussians, of which no
    Poisson analysis says anything.
    """
    assert gaussian_epsilon(50**-0.5, DELTA) == pytest.approx(54.4, abs=0.05)
    known = [
        dataclasses.replace(event, sampler=event.sampler | {"kind": "known-lots"})
        for event in search()
    ]
    with pytest.raises(
        BenchError,
        match=(
            "no analysis for gaussian noise with the sampler 'known-lots', so no"
            " epsilon"
        ),
    ):
        account(known, delta=DELTA, claims=CLAIMS)


def test_a_record_is_in_one_half_so_the_larger_of_both_holds():
    apart = [
        account([line(i, z=z, adds=1) for i in range(3)], delta=DELTA, claims=CLAIMS)
        for z in (1.0, 2.0)
    ]
    for weights, architecture in ((1.0, 2.0), (2.0, 1.0)):
        both = account(
            search(weights=weights, architecture=architecture, adds=1),
            delta=DELTA,
            claims=CLAIMS,
        )
        for name in ("holds", "as_claimed", "replace_one"):
            found, more = both.profiles[name], apart[0].profiles[name]
            assert (
                found.epsilon_high
                == more.epsilon_high
                > apart[1].profiles[name].epsilon_high
            )
        assert (
            "the worse of the releases of the training half and of the validation half"
            in found.explanation
        )


def test_sums_over_one_half_are_composed():
    """The mutant that takes both sums of the training half: the account of one set of
    records has both.
    """
    wrong = [
        dataclasses.replace(event, part="training half") for event in search(adds=1)
    ]
    both, half = (
        account(events, delta=DELTA, claims=CLAIMS)
        for events in (wrong, search(adds=1))
    )
    assert both.profiles["holds"].epsilon_low > half.profiles["holds"].epsilon_high
    alone = account(
        [line(i, z=0.5**0.5, adds=1) for i in range(3)], delta=DELTA, claims=CLAIMS
    )
    assert both.profiles["holds"].epsilon_high == pytest.approx(
        alone.profiles["holds"].epsilon_high, rel=1e-6
    )


def test_parts_and_all_records_do_not_go_into_one_account():
    mixed = [line(0), dataclasses.replace(line(0, name="gradient-sum"), part=None)]
    with pytest.raises(BenchError, match="of a part of the records and others of all"):
        account(mixed, delta=DELTA, claims=CLAIMS)


def test_three_observers_of_four_parties():
    """z, z root 3 and z root 4: the issue has 4.261 against the server and 1.497 for
    securely added sums.
    """
    rate, rounds = lots(4, 64)
    for noises, epsilon in ((1, 4.261), (4, 1.497)):
        assert poisson.upper_epsilon(
            ((noises**0.5, rounds),), rate, DELTA
        ) == pytest.approx(epsilon, rel=4e-4)
    found = account(search(clients=4, adds=4), delta=DELTA, claims=CLAIMS)
    accounts = [found, *found.also]
    assert [each.profiles["holds"].observer for each in accounts] == [
        "server",
        "another client",
        "everyone",
    ]
    for each, noises in zip(accounts, (1, 3, 4), strict=True):
        alone = poisson.upper_epsilon(((noises**0.5, 3),), 0.1, DELTA)
        assert each.profiles["holds"].epsilon_high == pytest.approx(alone, rel=1e-9)
        assert each.noise_multiplier == pytest.approx(noises**0.5)
    # A single party is seen as it is, and releases that nobody adds up have one
    # observer.
    assert account(search(clients=1, adds=1), delta=DELTA, claims=CLAIMS).also == ()
    apart = [dataclasses.replace(event, adds=None) for event in search()]
    assert account(apart, delta=DELTA, claims=CLAIMS).also == ()


def test_training_after_a_search_is_composed_with_it():
    """The issue: augmentation as DP-SGD at sigma = 1 for 600 epochs has 6.57 alone and
    6.99 with the search.
    """
    stages = (
        (((1.0, lots(1, 64)[1]),), lots(1, 64)[0]),
        (((1.0, 312_500),), 96 / 50_000),
    )
    assert poisson.upper_epsilon(*stages[1], DELTA) == pytest.approx(6.57, abs=5e-3)
    assert composed_ends(stages, DELTA)[1] == pytest.approx(6.99, abs=6e-3)


def test_one_mechanism_in_two_stages_is_one_schedule():
    """Against the accountant of one rate: 30 rounds and 20 rounds are 50."""
    low, high = composed_ends(((((1.5, 30),), 0.02), (((1.5, 20),), 0.02)), DELTA)
    exact = (
        poisson.lower_epsilon(((1.5, 50),), 0.02, DELTA),
        poisson.upper_epsilon(((1.5, 50),), 0.02, DELTA),
    )
    assert (
        (low, high) == pytest.approx(exact, rel=1e-3)
        and low <= exact[1]
        and exact[0] <= high
    )


@pytest.mark.parametrize(
    "stages",
    [
        (((1.0, 46), 0.05), ((0.8, 100), 0.03)),
        (((1.0, 46), 0.1), ((1.0, 46), 0.1)),
        (((2.0, 300), 0.02),) * 3,
    ],
)
def test_both_ends_of_several_stages_are_near_what_dp_accounting_composes(stages):
    """Its pessimistic and optimistic distributions bracket the exact value; the worst
    stage alone is far below.
    """
    ends = []
    for pessimistic in (False, True):
        laws = [
            privacy_loss_distribution.from_gaussian_mechanism(
                standard_deviation=z,
                sampling_prob=rate,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
                value_discretization_interval=1e-4,
            ).self_compose(rounds)
            for (z, rounds), rate in stages
        ]
        ends.append(
            functools.reduce(
                lambda one, other: one.compose(other), laws
            ).get_epsilon_for_delta(DELTA)
        )
    low, high = composed_ends(
        tuple((((z, rounds),), rate) for (z, rounds), rate in stages), DELTA
    )
    assert low <= ends[1] and ends[0] <= high and low <= high
    assert low == pytest.approx(ends[1], rel=4e-3) and high == pytest.approx(
        ends[1], rel=1e-3
    )
    assert low > 1.1 * max(
        poisson.upper_epsilon(((z, rounds),), rate, DELTA)
        for (z, rounds), rate in stages
    )


def test_stages_of_everyone_are_one_gaussian():
    """z = 1 three times and 0.8 four times at rate 1: z^-2 adds up to 9.25."""
    wanted = gaussian_epsilon(9.25**-0.5, DELTA)
    assert composed_ends(
        ((((1.0, 3),), 1.0), (((0.8, 4),), 1.0)), DELTA
    ) == pytest.approx((wanted, wanted), rel=1e-12)
    low, high = composed_ends(
        ((((1.0, 3),), 1.0), (((1.0, 4),), 1.0), (((0.8, 4),), 0.01)), DELTA
    )
    assert (
        gaussian_epsilon(7**-0.5, DELTA) == pytest.approx(low, rel=1e-12) and low < high
    )


def test_the_account_of_a_network_of_found_cells_has_the_search():
    own = [
        dataclasses.replace(
            line(i, name="gradient-sum", rate=0.05, records=200), part=None
        )
        for i in range(3)
    ]
    # The architecture's noise is less, so that the worst record is one of the
    # validation half.
    before = tuple(search(architecture=0.8))
    found = account(own, delta=DELTA, claims={}, given=AccountContext(before=before))
    stages = ((((0.8, 3),), 0.1), (((1.0, 3),), 0.05))
    assert found.profiles["holds"].epsilon_high == composed_ends(stages, DELTA)[1]
    assert found.profiles["holds"].epsilon_high > poisson.upper_epsilon(
        *stages[0], DELTA
    )
    assert (
        set(found.profiles) == {"holds"} and "rests on" in found.reasons["replace_one"]
    )
    # Another party sees the search's sums with the noise of one party as well: of two,
    # its own is known to it.
    more = composed_ends(((((0.8 * 2**0.5, 3),), 0.1), (((2**0.5, 3),), 0.05)), DELTA)[
        1
    ]
    assert found.also[1].profiles["holds"].epsilon_high == more


def test_old_ledgers_have_no_parts():
    old = dataclasses.replace(line(0), part=None, adds=None)
    first = old.line("")
    assert '"part"' not in first and '"adds"' not in first
    assert parse(first + line(1).line(digest(first)), "ledger") == [old, line(1)]
