"""dpfedbench: from data to tables and figures in one command, `uv run snakemake --cores all`."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from snakemake.utils import min_version

min_version("9.0")


def root_folder(here):
    """The repository's folder on this machine: the plan, the library and the scripts are read from files.

    A module whose Snakefile comes from Git is cloned at that commit, once, into Snakemake's cache of sources.
    """
    hosted = hasattr(here, "hosted_repo")
    if not hosted and not hasattr(here, "repo_path"):
        place = here.get_path_or_uri(secret_free=False)
        if "://" in place:
            taken = "github(...), gitlab(...), gitfile(...) or a path on this machine"
            sys.exit(
                f"configuration: a module cannot take dpfedbench from {place}: take {taken}"
            )
        return Path(place)
    from git import Repo

    source = here.hosted_repo.repo if hosted else Repo(here.repo_path)
    commit = source.commit(here.ref).hexsha
    folder = Path(workflow.sourcecache.cache_path, "dpfedbench", commit)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as made:
            clone = Path(made, "clone")
            cloned = Repo.clone_from(source.git_dir, clone, no_checkout=True)
            cloned.git.checkout("--detach", commit)
            try:
                os.rename(clone, folder)
            except OSError:  # another process was first
                if not folder.exists():
                    raise
    return folder


ROOT = root_folder(workflow.current_basedir)
# Scripts inherit this path too, so nothing has to be installed for `script:` to import the library.
sys.path.insert(0, str(ROOT / "src"))


configfile: ROOT / "config/config.yaml"


include: ROOT / "workflow/rules/files.smk"


for experiment in [*SHIPPED, *OWN_FILES]:

    configfile: experiment


include: ROOT / "workflow/rules/common.smk"
include: ROOT / "workflow/rules/data.smk"
include: ROOT / "workflow/rules/train.smk"
include: ROOT / "workflow/rules/search.smk"
include: ROOT / "workflow/rules/evaluate.smk"
include: ROOT / "workflow/rules/account.smk"
include: ROOT / "workflow/rules/audit.smk"
include: ROOT / "workflow/rules/privacy.smk"
include: ROOT / "workflow/rules/report.smk"
include: ROOT / "workflow/rules/machine.smk"
include: ROOT / "workflow/rules/export.smk"


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


# One target for each paper, e.g. `snakemake dp_fedmeta`: its tables, figures, table of privacy and page.
for paper in PAPERS:

    rule:
        name:
            paper.replace("-", "_")
        input:
            targets(paper),
            f"{REPORT}/{paper}.html",
