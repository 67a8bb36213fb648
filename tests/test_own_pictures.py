"""docs/your-data-and-model.md: a folder of pictures with users in their names needs a
short file and one call, and gets an ε of a user.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfedbench import load_runs
from dpfedbench.command import snakemake_words
from tests.calls import call_snakemake
from tests.pages import files_of_page, rows_of
from tests.workflow.conftest import planned_rules

CLASSES = ("cats", "dogs", "hats")
USERS = 20
FILE = files_of_page("your-data-and-model.md")["people.yaml"]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw 3 to 6 pictures of each class for each user, beside the page's file."""
    folder = tmp_path_factory.mktemp("people")
    draws = np.random.default_rng(0)
    for index, name in enumerate(CLASSES):
        (folder / "people" / name).mkdir(parents=True)
        for user in range(USERS):
            for number in range(3 + user % 4):
                pixels = draws.integers(0, 60, (28, 28), dtype=np.uint8)
                pixels[4 + 8 * index : 10 + 8 * index] += 120
                file = f"user{user}_{number}.png"
                Image.fromarray(pixels).save(folder / "people" / name / file)
    (folder / "people.yaml").write_text(FILE, encoding="utf-8")
    return folder


def call(folder: Path, *options: str) -> str:
    """Make the page's one call; return what it prints."""
    config = ["seeds=[0]", "terminal=snakemake"]
    words = snakemake_words(["run", "people.yaml", "--config", *config])
    data = {"DPFEDBENCH_DATA": os.fspath(folder)}
    done = call_snakemake(*words, *options, folder=folder, **data)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_pictures_plan_a_run_with_a_client_for_each_owner(people: Path) -> None:
    """A user has 9 to 18 pictures. One of each class is a test picture, so that each has
    6 at least; the file asks for 5.
    """
    jobs = planned_rules(call(people, "--dry-run"))
    (training,) = [text for rule, text in jobs if rule == "train"]
    assert "wildcards: method=dp-fedavg, dataset=people" in training
    assert f"/people/{USERS}clients-natural-least5-seed0/" in training


def test_own_pictures_need_fifteen_lines() -> None:
    assert len(FILE.splitlines()) <= 15


# Faster: test_own_pictures_plan_a_run_with_a_client_for_each_owner, and the page of
# test_fedrep_page.py.
@pytest.mark.slow
def test_own_pictures_have_an_epsilon_of_an_owner(people: Path) -> None:
    """The noise is the least that keeps the ε of 8 that the file asks for."""
    call(people)
    (row,) = rows_of(people / "results" / "tables" / "people" / "accuracy.csv")
    assert (row["dataset"], row["unit"]) == ("people", "client")
    assert 7.9 < float(row["epsilon_proven"]) <= 8.0
    assert float(row["delta"]) == 1e-3
    table = people / "results" / "tables" / "people" / "accuracy.md"
    assert "| client (owner) |" in table.read_text(encoding="utf-8")
    folder = people / "results" / "experiments" / "people"
    (run,) = load_runs(folder).to_dict("records")
    assert run["client_origin"] == "owner"
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "client (owner)" in page
    assert "client (synthetic)" not in page
