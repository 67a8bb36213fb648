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

CLASSES = ("cats", "dogs", "hats")
USERS = 20
FILE = files_of_page("your-data-and-model.md")["people.yaml"]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw 3 to 6 pictures of each class for each user; make the page's one call."""
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
    options = snakemake_words(["run", "people.yaml", "--config", "seeds=[0]"])
    data = {"DPFEDBENCH_DATA": os.fspath(folder)}
    done = call_snakemake(*options, folder=folder, **data)
    assert done.returncode == 0, done.stderr
    return folder


def test_own_pictures_need_fifteen_lines() -> None:
    assert len(FILE.splitlines()) <= 15


def test_own_pictures_have_an_epsilon_of_an_owner(followed: Path) -> None:
    """The noise is the least that keeps the ε of 8 that the file asks for."""
    (row,) = rows_of(followed / "results" / "tables" / "people" / "accuracy.csv")
    assert (row["dataset"], row["unit"]) == ("people", "client")
    assert 7.9 < float(row["epsilon_proven"]) <= 8.0
    assert float(row["delta"]) == 1e-3
    table = followed / "results" / "tables" / "people" / "accuracy.md"
    assert "| client (owner) |" in table.read_text(encoding="utf-8")
    folder = followed / "results" / "experiments" / "people"
    (run,) = load_runs(folder).to_dict("records")
    assert run["client_origin"] == "owner"
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "client (owner)" in page
    assert "client (synthetic)" not in page
