"""Plans of the workflow, and a data set that its tests need not draw."""

import re
import shutil

import pytest

from tests.calls import ROOT
from workflow_jobs.manifests import seal

SMOKE = ("--configfile", str(ROOT / "config" / "presets" / "smoke.yaml"))


@pytest.fixture
def plan(snakemake):
    """Return a function that makes a dry run, and returns all that it prints."""

    def dry_run(*arguments):
        done = snakemake("--dry-run", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return dry_run


def planned_rules(output):
    """Return (rule, text) for each job of a dry run."""
    pattern = r"^(?:local)?rule (\w+):\n((?:    .*\n)+)"
    return re.findall(pattern, output, flags=re.MULTILINE)


def planned_trainings(output):
    """Return (method, data set) of each training of a dry run, sorted."""
    jobs = planned_rules(output)
    pattern = r"wildcards: method=([\w-]+), dataset=([\w-]+)"
    return sorted(
        re.search(pattern, text).groups() for rule, text in jobs if rule == "train"
    )


def seal_glyphs(folder):
    """Seal a folder of images, so that the workflow takes it as the rule's."""
    names = ("images.npy", "classes.csv", "summary.json")
    seal("prepare", [folder / name for name in names])
    return folder


@pytest.fixture
def drawn(federation, tmp_path):
    """Save the small federation's data as `glyphs`: drawing letters takes longer."""
    folder = tmp_path / "results" / "data" / "glyphs"
    shutil.copytree(federation[0], folder)
    return seal_glyphs(folder)
