"""The page of the papers that are finished so far.

It lies where the page of all papers will lie. No rule declares it as an output, since
Snakemake allows one rule for a file; the rule writes a file that says which papers are
missing, and the page of all papers waits for the last of these files.
"""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpfedbench.files import write_json, write_text
from dpfedbench.manifests import FOLDER


def write_page_so_far(
    text: str,
    page: Path,
    state: Path,
    *,
    inputs: Iterable[str | Path],
    finished: Sequence[str],
    missing: Sequence[str],
) -> None:
    """Write a page in the place of the page of all papers, and the file beside it.

    A workflow that is stopped leaves no page behind that Snakemake takes for the page of
    all papers: the page is older than its inputs, and each `state` is different.

    Args:
        text: the page.
        page: path of the page of all papers.
        state: path of the file that says which papers are finished.
        inputs: the files that the page was made from.
        finished: titles of the papers on the page.
        missing: titles of the papers that are not on it.
    """
    for manifest in (page.parent / FOLDER).glob(f"*page-{page.stem}.sha256"):
        manifest.unlink()
    write_text(page, text)
    earlier = min(os.stat(path).st_mtime for path in inputs) - 1
    os.utime(page, (earlier, earlier))
    write_json(
        state,
        {"finished": list(finished), "missing": list(missing), "made": time.time()},
    )
