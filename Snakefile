"""Workflow of dpfedbench, from data to tables and figures: `uv run snakemake --cores all`."""

import sys

from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/root.smk"


ROOT = root_folder(workflow.current_basedir)
# Scripts inherit this search path, so that they find the library without an installation.
sys.path[:0] = map(str, source_folders(ROOT))


include: ROOT / "workflow/rules/terminal.smk"


configfile: ROOT / "config/config.yaml"


include: ROOT / "workflow/rules/files.smk"


for file in [*SHIPPED, *OWN_FILES, *FOLDER_FILES]:

    configfile: file


for stage in (
    "common data train search evaluate account audit privacy report libraries machine export"
).split():

    include: ROOT / f"workflow/rules/{stage}.smk"


rule all:
    """Make every table and figure of every paper, the page that shows them, and their provenance.

    `--config only=NAME,NAME` makes those of some experiments, each with a page of its own.
    """
    default_target: True
    input:
        [target for name in ONLY for target in PLANNED.experiment_targets(name)]
        or [
            *PLANNED.targets(),
            *(
                f"{REPORT}/{name}"
                for name in ("runs.parquet", "provenance.json", "index.html")
            ),
        ],


rule frontier:
    """Draw accuracy over the proven epsilon for each data set and task, and make one table of all."""
    input:
        PLANNED.frontier_targets(),


rule libraries:
    """Run other libraries at the settings of their tutorials; list their claimed and proven epsilon."""
    input:
        [f"{REPORT}/tables/libraries.{kind}" for kind in ("csv", "md")],


# A target for each experiment makes its tables, figures, page, data frames and archive: `snakemake dp_fedmeta`.
for paper in PAPERS:

    rule:
        name:
            paper.replace("-", "_")
        input:
            PLANNED.experiment_targets(paper),
