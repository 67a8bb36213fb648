"""The targets of the workflow by name, and the command for each."""

import difflib
import math
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from dpfedbench.errors import BenchError
from dpfedbench.settings.words import nearest

OWN_TARGETS = ("all", "frontier", "index", "libraries")
"""What the workflow has by name besides the rules of its files; `index` is the page of
all papers.
"""

OF_ALL = ("privacy", "answer")
"""The tables that each paper has, and all together, whatever is configured."""


def check_targets(
    targets: Sequence[str],
    report: str,
    items: Mapping[tuple[str, str], bool],
    rules: Collection[str],
) -> None:
    """Refuse a table, figure or export that the plan does not have, and names that
    stand for something else.

    Args:
        targets: what was asked for, among other words of the command.
        report: the folder that tables and figures go to.
        items: by paper and name, whether it is a table; else it is a figure.
        rules: the names of the workflow's rules.

    Raises:
        BenchError: names the nearest file that can be made, or the name to change.
    """
    known = {
        f"{report}/tables/{name}.{kind}"
        for name in ("frontier", "libraries")
        for kind in ("csv", "md")
    }
    for of in (
        "",
        *{f"{paper}/": None for paper, _ in items},
    ):  # of all papers, and of each
        known |= {
            f"{report}/tables/{of}{name}.{kind}"
            for name in OF_ALL
            for kind in ("csv", "md")
        }
        known |= {
            f"{report}/{place}"
            for place in (f"figures/{of}privacy.csv", f"figures/{of}privacy.png")
        }
    for (paper, name), is_table in items.items():
        if paper.replace("-", "_") in {*rules, *OWN_TARGETS}:
            raise BenchError(
                f"experiments.{paper}: the workflow itself has a target of this name,"
                " choose another"
            )
        group, kinds = (
            ("tables", ("csv", "md")) if is_table else ("figures", ("csv", "png"))
        )
        if name in OF_ALL:
            raise BenchError(
                f"experiments.{paper}.{group}.{name}: the table of {name} has this"
                " name, choose another"
            )
        known |= {f"{report}/{group}/{paper}/{name}.{kind}" for kind in kinds}
        if not is_table:
            known |= {f"{report}/export/{paper}/{name}.pdf"}
    names = {*rules, *OWN_TARGETS, *(paper.replace("-", "_") for paper, _ in items)}
    for target in _surely_targets(targets):  # what is like no name is left to Snakemake
        for near in (
            difflib.get_close_matches(target, names, n=1, cutoff=0.75)
            if target not in names
            else []
        ):
            raise BenchError(f"there is no target {target}: did you mean {near}?")
    for target in targets:
        path = PurePosixPath(target)
        below = (
            path.relative_to(report).parts[0]
            if path.is_relative_to(report) and target != report
            else ""
        )
        drawn = below in ("tables", "figures", "export") and path.suffix in (
            ".csv",
            ".md",
            ".png",
            ".pdf",
        )
        if drawn and str(path) not in known:
            raise BenchError(
                f"nothing makes {target}: the nearest that can be made is"
                f" {nearest(str(path), known)}"
            )


_ONE, _NONE = (
    {"--cores", "-c", "--jobs", "-j", "--directory", "-d"},
    {"--dry-run", "-n", "--keep-going", "-k", "--"},
)
"""Options of Snakemake that take one value, and that take none."""


def _surely_targets(words: Sequence[str]) -> list[str]:
    """The names among the words of a command that cannot be values of an option."""
    names, values = [], 0.0  # how many words may still be values
    for word in words:
        if word.startswith("-"):
            values = 1 if word in _ONE else 0 if word in _NONE else math.inf
        elif values:
            values -= 1
        elif word.isidentifier():
            names.append(word)
    return names


def own_command(
    *,
    through_uv: bool,
    through_conda: bool,
    files: Sequence[Path],
    values: Sequence[str],
    root: Path,
) -> str:
    """The command of somebody who called the workflow in this way, with `{target}` for
    what is asked for.

    Args:
        through_uv: called by `uv run`.
        through_conda: with `--use-conda`.
        files: of `--configfile`, absolute; those of the repository are shown as seen
            from it, others from here.
        values: of `--config`.
        root: the repository, or the folder of the workflow in an installed package.
    """
    words = (
        ["uv", "run"] * through_uv
        + ["snakemake", "--cores", "all"]
        + ["--use-conda"] * through_conda
    )
    if root.parts[-2:] == (
        "dpfedbench",
        "workflow",
    ):  # what an installed package has, by its own command
        words = ["dpfedbench", "run"]
        if files and files[0].parent == root / "config" / "presets":
            words += ["--preset", files[0].stem]
            files = files[1:]
    shown = [
        os.path.relpath(file, root if file.is_relative_to(root) else Path.cwd())
        for file in files
    ]
    kept = [value for value in values if not value.startswith("deep=")]
    # The target goes before these: each takes every word after it for one more of its
    # own.
    after = ["--configfile", *shown] * bool(shown) + ["--config", *kept] * bool(kept)
    return f"{shlex.join(words)} {{target}} {shlex.join(after)}".strip()
