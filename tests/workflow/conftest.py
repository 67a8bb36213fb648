"""A data set that the tests of the workflow need not draw."""

import shutil

import pytest

from workflow_jobs.manifests import seal


@pytest.fixture
def drawn(federation, tmp_path):
    """Save the small federation's data as `glyphs`: drawing letters takes longer."""
    folder = tmp_path / "results" / "data" / "glyphs"
    shutil.copytree(federation[0], folder)
    names = ("images.npy", "classes.csv", "summary.json")
    seal("prepare", [folder / name for name in names])
    return folder
