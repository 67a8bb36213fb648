"""dpfedbench: from data to tables and figures in one command, `uv run snakemake --cores all`."""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")

# Scripts inherit this path too, so nothing has to be installed for `script:` to import the library.
sys.path.insert(0, str(Path(workflow.basedir, "src")))


# Snakemake limits jobs to 100 a second by a timer that looks at all ready jobs again and is set anew at each look; each
# job that ends adds one (9.27), which came to 40 % of a core after 200 jobs. A limit of one's own is kept.
limit = (
    workflow.scheduling_settings and workflow.scheduling_settings.max_jobs_per_timespan
)
if limit and (limit.max_jobs, limit.timespan) == (100, 1):
    workflow.scheduling_settings.max_jobs_per_timespan = None


configfile: Path(workflow.basedir, "config/config.yaml")


for experiment in sorted(Path(workflow.basedir, "config/experiments").glob("*.yaml")):

    configfile: experiment


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/account.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/privacy.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/machine.smk"


rule all:
    """Every table and figure of every paper, what made them, and the page that shows them."""
    default_target: True
    input:
        targets(),
        f"{REPORT}/provenance.json",
        f"{REPORT}/index.html",


# One target for each paper, e.g. `snakemake dp_fedmeta`.
for paper in PAPERS:

    rule:
        name:
            paper.replace("-", "_")
        input:
            targets(paper),
