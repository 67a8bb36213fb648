"""dpfedbench: from data to tables and figures in one command, `uv run snakemake --cores all`."""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")
ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=False))
# Scripts inherit this path too, so nothing has to be installed for `script:` to import the library.
sys.path.insert(0, str(ROOT / "src"))


configfile: ROOT / "config/config.yaml"


include: "workflow/rules/files.smk"


for experiment in [*SHIPPED, *OWN_FILES]:

    configfile: experiment


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/account.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/privacy.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/libraries.smk"
include: "workflow/rules/machine.smk"
include: "workflow/rules/export.smk"


rule all:
    """Every table and figure of every paper, what made them, and the page that shows them."""
    default_target: True
    input:
        targets(),
        [f"{REPORT}/{name}" for name in ("cells.tsv", "provenance.json", "index.html")],


rule frontier:
    """Accuracy over the epsilon that holds: a figure for each data set and task, and one table."""
    input:
        frontiers(),


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
            targets(paper),
            f"{REPORT}/{paper}.html",
