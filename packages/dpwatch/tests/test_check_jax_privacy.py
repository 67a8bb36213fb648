"""`dpwatch check` of loops with jax_privacy: right ones, pitfalls, compiled steps."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax_privacy")

from checked_scripts import PITFALLS, PLANTED, pitfall_of, titles

from dpsum.accounting.analyses import poisson
from dpwatch.check.command import check
from dpwatch.check.pitfalls import PITFALLS as TITLES

JAX = [name for name in PLANTED if name.startswith("jax/")]


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    """Run in a folder of the test: one script saves a model."""
    monkeypatch.chdir(tmp_path)


def check_jax(script, *arguments):
    """Check a script in a process of its own: threads of jax do not survive a fork."""
    command = [sys.executable, str(script), *arguments]
    report = check(command, settings={"audit_calls": 0})
    assert report["exit_code"] == 0
    return report


@pytest.mark.parametrize("name", JAX)
def test_check_catches_a_planted_pitfall_of_jax_privacy(name):
    report = check_jax(PITFALLS / f"{name}.py")
    verdict, words = PLANTED[name]
    assert report["verdict"] == verdict, report["why"]
    assert words in f"{report['why']} {titles(report)}"
    assert TITLES[pitfall_of(name)] in titles(report)


def test_check_watches_a_right_loop_of_jax_privacy():
    """Three Poisson rounds of z = 1 and rate 0.1, by dpsum and by dp_accounting."""
    report = check_jax(PITFALLS / "jax" / "right.py")
    assert (report["verdict"], report["findings"]) == ("proven", []), report["why"]
    profiles = report["watched"][0]["account"]["profiles"]
    low, high = poisson.ends(((1.0, 3),), 0.1, 1e-5)
    assert profiles["proven"]["epsilon_low"] == low
    assert profiles["proven"]["epsilon_high"] == high
    assert profiles["claimed"]["epsilon_high"] == pytest.approx(high, rel=1e-3)
    assert profiles["claimed"]["adjacency"] == "add-or-remove"


STEP = """
    clipped = gradient(weights, rows, targets)
    noisy, noise_state = privatizer.update(clipped, noise_state)
"""


def test_check_names_what_it_cannot_see_in_a_compiled_step(tmp_path):
    """A script whose privatizer, or whose clipped function alone, is compiled."""
    text = (PITFALLS / "jax" / "right.py").read_text(encoding="utf-8")
    assert STEP in text
    step = "    noisy, noise_state = step(weights, rows, targets, noise_state)\n"
    compiled = """
@jax.jit
def step(weights, rows, targets, noise_state):
    clipped = gradient(weights, rows, targets)
    return privatizer.update(clipped, noise_state)


batches ="""
    script = tmp_path / "compiled.py"
    script.write_text(text.replace(STEP, f"\n{step}").replace("\nbatches =", compiled))
    report = check_jax(script)
    assert report["verdict"] == "nothing proven"
    assert report["watched"] == []
    for words in (
        "compiled code (jax.jit)",
        "Seen: 3 batches of CyclicPoissonSampling of 200 examples; a clipped function of"
        " sensitivity 0.05; a gaussian_privatizer of deviation 0.05. Not seen: whether",
    ):
        assert words in report["why"]
    assert report["paragraph"].endswith(
        "The script gets epsilon 2.087 at delta 1e-05 from JAX Privacy's accountant."
    )
    script = tmp_path / "half.py"
    script.write_text(
        text.replace(
            "privatizer =", "gradient_of = jax.jit(gradient)\nprivatizer ="
        ).replace("clipped = gradient(", "clipped = gradient_of(")
    )
    report = check_jax(script)
    assert report["verdict"] == "nothing proven"
    assert "was computed under jax.jit" in report["why"]


CALIBRATION = """
from jax_privacy.accounting import accountants, analysis, calibrate

values = dict(
    target_epsilon=2.0,
    accountant=analysis.DpsgdTrainingAccountant(
        dp_accountant_config=accountants.RdpAccountantConfig()
    ),
    num_samples=200,
    target_delta=1e-5,
)
print(calibrate.calibrate_noise_multiplier(batch_sizes=20, num_updates=3, **values))
"""


def test_check_takes_one_claim_from_a_calibration_of_jax_privacy(tmp_path):
    """The accountant is asked at each step of the search; its result alone counts."""
    text = (PITFALLS / "jax" / "right.py").read_text(encoding="utf-8")
    script = tmp_path / "calibrated.py"
    script.write_text(text.partition("gaussian =")[0] + CALIBRATION)
    (claim,) = check_jax(script)["claims"]
    assert claim["epsilon"] == pytest.approx(2.0, abs=0.05)
    assert claim["delta"] == 1e-5


def test_check_changes_no_bit_of_a_jax_privacy_training(tmp_path):
    script = tmp_path / "train.py"
    text = (PITFALLS / "jax" / "right.py").read_text(encoding="utf-8")
    script.write_text(f"{text}import sys\nnp.save(sys.argv[1], weights)\n")
    watched = tmp_path / "watched.npy"
    alone = tmp_path / "alone.npy"
    check_jax(script, str(watched))
    subprocess.run([sys.executable, script, alone], check=True)
    assert np.array_equal(np.load(watched), np.load(alone))
