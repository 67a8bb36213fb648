"""The calculator's page: its codes, its tables, and 200 positions of its sliders.

The browser is Debian's `chromium` or what CHROMIUM names, driven by Playwright.
"""

import base64
import json
import math
import os
import shutil

import numpy as np
import pytest
from closed_forms import sampled_gaussian_epsilon

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting.analyses import balls_and_bins, poisson
from dpwatch import shell
from dpwatch.__main__ import main
from dpwatch.calculator import (
    INFINITE,
    LEAST_EPSILON,
    Grid,
    calculator_page,
    compute_tables,
    encode,
)

GRID = Grid(
    rates=(0.01, 0.03, 0.1),
    rounds=(10, 30, 100),
    multipliers=(0.6, 1.0, 2.0, 5.0),
    deltas=(1e-6, 1e-5),
    gaussian_multipliers=tuple(np.geomspace(0.2, 50, 60)),
)
POSITIONS = {"poisson": 60, "balls-and-bins": 20, "one-pass": 60, "everyone": 60}


@pytest.fixture(scope="module")
def data():
    return compute_tables(GRID)


def decode(code):
    """Return the end of epsilon of a code, as the page does."""
    if code == INFINITE:
        return math.inf
    return 1e-4 * math.exp((code - 1) / 4000) if code else 0.0


def table_of(data, name, *shape):
    codes = np.frombuffer(base64.b64decode(data["tables"][name]), dtype="<u2")
    values = np.array([decode(int(code)) for code in codes])
    return values.reshape(*shape, 2)


def test_codes_are_rounded_outwards_by_less_than_a_step():
    rng = np.random.default_rng(0)
    for epsilon in np.exp(rng.uniform(math.log(1e-3), math.log(50), 2000)):
        low = decode(encode(epsilon, up=False))
        high = decode(encode(epsilon, up=True))
        assert low < epsilon < high
        assert high / low < math.exp(2 / 4000)
    assert decode(encode(0.0, up=False)) == 0.0
    assert encode(math.inf, up=True) == INFINITE
    assert decode(INFINITE) == math.inf


def test_table_of_poisson_encloses_the_exact_round(data):
    """Ten rounds are at least one round, whose epsilon mpmath has in 40 digits."""
    table = table_of(data, "poisson", 3, 3, 2, 4)
    low, high = table[2, 0, 1, 1]
    assert sampled_gaussian_epsilon(1.0, 0.1, "1e-5") < high
    own = poisson.ends(((1.0, 10),), 0.1, 1e-5)
    assert low <= own[0] <= own[1] <= high
    assert high / low < 1.03


def test_tables_are_monotone(data):
    """Axes of the table: rates, rounds, deltas, multipliers; rates and rounds raise."""
    table = table_of(data, "poisson", 3, 3, 2, 4)[..., 1]
    # Below the least shown epsilon, the high end is that of less noise.
    logarithms = np.log(np.clip(table, LEAST_EPSILON, 1e3))
    for axis, sign in enumerate([1, 1, -1, -1]):
        assert (sign * np.diff(logarithms, axis=axis) >= -1e-3).all()


@pytest.mark.parametrize(
    "wrong", [{"rates": (0.1, 0.01)}, {"rates": (1.0,)}, {"multipliers": (0.1,)}]
)
def test_grid_refuses_numbers_out_of_range(wrong):
    with pytest.raises(DpsumError, match="grid's"):
        Grid(**wrong)


def test_command_calculator_writes_the_page(tmp_path, monkeypatch, capsys):
    """Two processes compute the tables of one."""
    grid = Grid(
        rates=(0.05, 0.1),
        rounds=(10,),
        multipliers=(2.0,),
        deltas=(1e-5,),
        gaussian_multipliers=(1.0,),
    )
    monkeypatch.setattr(shell, "Grid", lambda: grid)
    path = tmp_path / "calculator.html"
    assert main(["calculator", "--output", str(path), "--processes", "2"]) == 0
    assert "4 points in" in capsys.readouterr().out
    page = path.read_text(encoding="utf-8")
    alone = compute_tables(grid)
    for table in alone["tables"].values():
        assert json.dumps(table) in page
    assert "default-src 'none'" in page


@pytest.fixture(scope="module")
def tab(data, tmp_path_factory):
    reason = "`uv sync --group browser` installs playwright"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    names = ("chromium", "google-chrome")
    browsers = [os.environ.get("CHROMIUM"), *map(shutil.which, names)]
    executable = next(filter(None, browsers), None)
    if executable is None:
        pytest.skip("no Chromium here: `apt-get install chromium`, or set CHROMIUM")
    path = tmp_path_factory.mktemp("calculator") / "calculator.html"
    path.write_text(calculator_page(data), encoding="utf-8")
    errors = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable)
        tab = browser.new_page()
        tab.on("pageerror", lambda error: errors.append(error))
        tab.goto(path.as_uri())
        yield tab
        browser.close()
    assert errors == []


SET = """(values) => {
  for (const [name, value] of Object.entries(values)) {
    const input = document.getElementById(name);
    if (input.type === "checkbox") input.checked = value; else input.value = value;
  }
  document.dispatchEvent(new Event("input"));
  const shown = document.getElementById("epsilon");
  const needed = document.getElementById("needed").dataset;
  return { ...shown.dataset, text: shown.textContent, ...needed };
}"""


def own_ends(setting):
    """Return dpsum's own ends of epsilon at the page's setting."""
    z = setting["z"]
    delta = setting["delta"]
    rounds = setting["rounds"]
    if setting["adjacency"] == "replace-one":
        z = z / 2
    if setting["sampler"] == "poisson":
        return poisson.ends(((z, rounds),), setting["rate"], delta)
    if setting["sampler"] == "balls-and-bins":
        low = balls_and_bins.lower_epsilon(z, rounds, rounds, delta)
        return low, balls_and_bins.upper_epsilon(z, rounds, rounds, delta)
    if setting["sampler"] == "everyone":
        z = z / math.sqrt(rounds)
    exact = gaussian_epsilon(z, delta)
    return exact, exact


def value_of(text):
    return math.inf if text == "Infinity" else float(text)


SLIDERS = ("rate", "units", "cohort", "rounds", "multiplier", "delta", "target")


def draw_sliders(rng, *, off_grid):
    """Return positions of the sliders.

    Where only one is off the grid, the others stand at an end, which is a grid's point:
    the slack of several directions would hide a fault of one.
    """
    values = {name: int(rng.integers(0, 1001)) for name in SLIDERS}
    if off_grid == "one":
        chosen = rng.choice(["rate", "rounds", "multiplier", "delta"])
        for name in SLIDERS:
            if name != chosen:
                values[name] = int(rng.choice([0, 1000]))
    snap = off_grid == "none"
    counts = off_grid != "one" and bool(rng.random() < 0.3)
    return values | {"snap": snap, "counts": counts}


def test_page_encloses_the_ends_of_dpsum_at_200_positions(tab):
    """A third at the grid's points, a third with one slider off it, a third with all."""
    rng = np.random.default_rng(68)
    widest = 0.0
    finite = 0
    for sampler, count in POSITIONS.items():
        for number in range(count):
            values = draw_sliders(rng, off_grid=("none", "one", "all")[number % 3])
            values |= {
                "sampler": sampler,
                "adjacency": "replace-one" if rng.random() < 0.5 else "zero-out",
            }
            shown = tab.evaluate(SET, values)
            low = value_of(shown["low"])
            high = value_of(shown["high"])
            own_low, own_high = own_ends(json.loads(shown["setting"]))
            assert low <= own_low * (1 + 1e-9), (values, shown)
            assert own_high <= high * (1 + 1e-9), (values, shown)
            if low > 0 and high < math.inf:
                finite += 1
                widest = max(widest, high / low)
            if high < math.inf and not values["counts"] and values["snap"]:
                text_low, text_high = shown["text"].split(" to ")
                assert float(text_low) <= low
                assert float(text_high) >= high
    print(f"{finite} positions with two ends; the widest is a factor of {widest:.2f}")
    assert finite > 60


def test_page_says_a_multiplier_that_is_enough(tab):
    """At epsilon 2, 100 rounds of rate 0.03 and delta 1e-5 (positions of the grid)."""
    position = {"snap": True, "counts": False, "sampler": "poisson", "target": 565}
    position |= {"rate": 477, "rounds": 1000, "delta": 1000, "multiplier": 0}
    shown = tab.evaluate(SET, position | {"adjacency": "zero-out"})
    setting = json.loads(shown["setting"])
    assert (setting["rate"], setting["rounds"], setting["delta"]) == (0.03, 100, 1e-5)
    target = float(tab.locator("#target-value").inner_text())
    enough = float(shown["enough"])
    short = float(shown["short"])
    schedule = ((enough, 100),)
    assert poisson.upper_epsilon(schedule, 0.03, 1e-5) <= target
    assert poisson.lower_epsilon(((short, 100),), 0.03, 1e-5) > target
    assert short < enough
