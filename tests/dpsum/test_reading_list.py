"""The six files that the docstring of `dpsum` lists have the Gaussian case."""

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpsum
from dpsum.accounting.accountant import Accountant, ComposedAccountant
from dpsum.accounting.analyses import poisson
from dpsum.ledger import Release, parse, read_ledger
from dpsum.mechanism import Accumulator, Mechanism
from dpsum.noise import Noise
from dpsum.private_sum import PrivateSum, add_rows, clip, l2_norm
from dpsum.randomness import stream

STEPS: tuple[Callable[..., Any], ...] = (
    Mechanism.begin_round,
    Accumulator.add,
    add_rows,
    l2_norm,
    clip,
    Mechanism.finish,
    Mechanism.draw_noise,
    Noise.standard,
    PrivateSum.release,
    Mechanism.write,
    Release.line,
    read_ledger,
    parse,
    Accountant.read,
    ComposedAccountant.bracket,
    poisson.ends,
    poisson.upper_epsilon,
    poisson.lower_epsilon,
)
"""From a contribution to epsilon."""


def listed_files() -> set[Path]:
    package = Path(dpsum.__file__).parent
    named = re.findall(r"^\d\. `dpsum/(.+?)`", dpsum.__doc__ or "", re.MULTILINE)
    return {package / name for name in named}


def test_reading_list_has_every_step_in_at_most_six_files() -> None:
    files = {Path(inspect.getfile(inspect.unwrap(step))) for step in STEPS}
    assert files == listed_files()
    assert len(files) <= 6


def test_reading_list_gives_the_release_and_the_epsilon(tmp_path: Path) -> None:
    """Two contributions, (3, 4) clipped to norm 1 and (0.5, 0), and the named noise;
    epsilon of the ledger is that of `poisson.ends` at the written z and q.
    """
    cohorts = dpsum.Poisson(units=100, cohort=2, rounds=1, seed=0)
    spec = dpsum.SumSpec(
        name="update",
        unit="client",
        observer="everyone",
        clipping=dpsum.Constant(1.0),
        noise=dpsum.Gaussian(2.0),
    )
    path = tmp_path / "ledger.jsonl"
    mechanism = dpsum.Mechanism(
        spec, participation=cohorts, dimension=2, ledger=path, seed=7
    )
    total = mechanism.begin_round(0)
    total.add(np.array([[3.0, 4.0], [0.5, 0.0]]))
    released = mechanism.release(total)
    noise = stream(7, spec.stream, 0).standard_normal(2)
    np.testing.assert_allclose(released, [1.1, 0.8] + 2.0 * noise, rtol=1e-15)

    (line,) = read_ledger(path)
    assert (line.noise_multiplier, line.sampler["rate"]) == (2.0, 0.02)
    low, high = poisson.ends(((2.0, 1),), 0.02, 1e-5)
    proven = dpsum.account(path, delta=1e-5).profiles["proven"]
    assert (proven.epsilon_low, proven.epsilon_high) == (low, high)
    # One round alone: delta = E[(1 - q) + q exp((x - 1/2) / z^2) - e^eps]^+ over
    # x ~ N(0, z^2), which has a closed form where the likelihood ratio is e^eps.
    for epsilon, above in ((low, True), (high, False)):
        delta = delta_of_one_round(epsilon, z=2.0, q=0.02)
        assert delta >= 1e-5 * (1 - 1e-9) if above else delta <= 1e-5 * (1 + 1e-9)


def delta_of_one_round(epsilon: float, *, z: float, q: float) -> float:
    """Return delta(epsilon) of (1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2)."""
    cut = z * z * math.log((math.exp(epsilon) - 1 + q) / q) + 0.5

    def tail(x: float) -> float:
        return 0.5 * math.erfc(x / math.sqrt(2))

    without = tail(cut / z)
    with_unit = tail((cut - 1) / z)
    return (1 - q) * without + q * with_unit - math.exp(epsilon) * without
