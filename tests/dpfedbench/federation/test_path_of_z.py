"""Which files have the noise multiplier z of DP-AGR in hand, from the experiment's YAML
to the first draw of noise.
"""

import functools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import yaml

from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.papers import read_run_file
from dpfedbench.parts.noise.noise import Fixed
from dpsum.accounting.budgets import BudgetPlan
from dpsum.noise import Noise
from dpsum.private_sum import PrivateSum
from tests.dpfedbench.federation.conftest import given_rounds
from tests.shipped import ROOT, parsed

Z = 3.98731
"""No other number of the run is this one."""

CEILING = 12


class Trace:
    """Files of src/ in which z is a value of a call, is what one returns, or is read
    off an object.
    """

    def __init__(self) -> None:
        self.files, self.drawn = set[str](), False

    def note(self, frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if not self.drawn and path.is_relative_to(ROOT / "src"):
            self.files.add(path.relative_to(ROOT / "src").as_posix())

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if event in ("call", "return"):
            here = [*frame.f_locals.values(), value if event == "return" else None]
            if any(isinstance(one, float) and one == Z for one in here):
                self.note(frame)

    def watch(self, monkeypatch: pytest.MonkeyPatch, cls: type) -> None:
        """Note who reads z off an object of a class."""
        read = cls.__getattribute__

        def noted(owner: Any, name: str) -> Any:
            value = read(owner, name)
            if isinstance(value, float) and value == Z:
                self.note(sys._getframe(1))
            return value

        monkeypatch.setattr(cls, "__getattribute__", noted)


def experiment() -> dict[str, Any]:
    """The shipped configuration, of which Figure 4d's series at z = 4 alone is left;
    its z is `Z`.
    """
    shipped = overlaid(
        *(
            parsed(ROOT / "config" / name)
            for name in ("config.yaml", "experiments/dp-fedmeta.yaml")
        )
    )
    paper = shipped["experiments"]["dp-fedmeta"]
    series = paper["figures"]["figure4d"]["series"]["z4"]
    assert series["run"]["noise"]["multiplier"] == 4
    series["run"]["noise"]["multiplier"] = Z
    paper["figures"] = {
        "figure4d": paper["figures"]["figure4d"] | {"series": {"z4": series}}
    }
    return shipped | {"experiments": {"dp-fedmeta": paper | {"tables": {}}}}


def test_z_of_dp_agr_passes_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, found = yaml.safe_dump(experiment()), Trace()
    for cls in (Fixed, BudgetPlan, PrivateSum):
        found.watch(monkeypatch, cls)
    standard, below = Noise.standard, list[str]()

    @functools.wraps(standard)
    def draw(*given: Any) -> np.ndarray:
        found.drawn = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            below.append(Path(frame.f_code.co_filename).name)
            frame = frame.f_back
        return standard(*given)

    monkeypatch.setattr(Noise, "standard", draw)
    before = sys.getprofile()
    sys.setprofile(found)
    try:
        planned = next(
            iter(make_plan(Configuration.read(yaml.safe_load(text))).runs.values())
        )
        file = tmp_path / planned.folder / "config.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(planned.to_yaml(), encoding="utf-8")
        run = read_run_file(file)
        rounds = given_rounds(run, np.ones((run.clients.count, 3)))
        rounds.round(0)
    finally:
        sys.setprofile(before)
    assert found.drawn and rounds.server.noise_multiplier == Z
    # Its field, what reads it, and what adds the noise.
    wanted = {
        "dpfedbench/settings/part.py",
        "dpsum/mechanism.py",
        "dpsum/private_sum.py",
    }
    assert wanted <= found.files and len(found.files) <= CEILING, sorted(found.files)
