"""The folder of the repository on this machine."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def source_folders(root):
    """The folders with the repository's packages: src, and that of each project in packages/."""
    return [root / "src", *sorted(root.glob("packages/*/src"))]


def root_folder(here):
    """Return the repository's folder, from which the plan, the library and the scripts are read.

    If another workflow uses this one as a module from a Git host, the repository is cloned once at that commit into
    Snakemake's cache of sources.

    Args:
        here: Snakemake's description of the folder of this Snakefile.
    """
    if not hasattr(here, "hosted_repo"):
        place = here.get_path_or_uri(secret_free=False)
        if "://" in place:
            taken = "github(...), gitlab(...) or a path on this machine"
            sys.exit(
                f"configuration: a module cannot take dpfedbench from {place}: take {taken}"
            )
        return Path(place)
    from git import Repo

    source = here.hosted_repo.repo
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
