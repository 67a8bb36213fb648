"""dpfedbench: from data to tables and figures in one command, `uv run snakemake --cores all`."""

import sys

from snakemake.utils import min_version

min_version("9.0")


# By its place beside this file, which may be on a Git host.
include: "workflow/rules/root.smk"


ROOT = root_folder(workflow.current_basedir)
# Scripts inherit this path too, so nothing has to be installed for `script:` to import the library.
sys.path.insert(0, str(ROOT / "src"))


configfile: ROOT / "config/config.yaml"


include: ROOT / "workflow/rules/files.smk"


for experiment in [*SHIPPED, *OWN_FILES]:

    configfile: experiment


for stage in (
    "common data train search evaluate account audit privacy report libraries machine export"
).split():

    include: ROOT / f"workflow/rules/{stage}.smk"


rule all:
    """Every table and figure of every paper, what made them, and the page that shows them."""
    default_target: True
    input:
        PLANNED.targets(),
        [
            f"{REPORT}/{name}"
            for name in ("runs.parquet", "provenance.json", "index.html")
        ],


rule frontier:
    """Accuracy over the epsilon that holds: a figure for each data set and task, and one table."""
    input:
        PLANNED.frontier_targets(),


rule libraries:
    """Run other libraries at their tutorials' settings: what they claim, and what holds."""
    input:
        [f"{REPORT}/tables/libraries.{kind}" for kind in ("csv", "md")],


# One target for each paper, e.g. `snakemake dp_fedmeta`: its tables, figures, table of privacy and page.
for paper in PAPERS:

    rule:
        name:
            paper.replace("-", "_")
        input:
            PLANNED.targets(paper),
            f"{REPORT}/{paper}.html",
