"""Read manifests: the SHA-256 of each file of the results, beside the file.

In each folder `manifest/RULE-NAME.sha256` has a line for each file that one job of a
rule wrote there, in the form of `sha256sum`, so that `sha256sum -c manifest/*` checks
it too. `workflow_jobs.manifests` writes them.

Manifests detect damage and accidental edits. They are not tamper-proof.
"""

import re
from pathlib import Path

from dpfedbench import files
from dpfedbench.errors import BenchError

FOLDER = "manifest"
RESULTS = "results"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/]+)")


def listed(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the SHA-256 of each file in a folder's manifests, and the rule that wrote
    it, by the file's name.

    Raises:
        BenchError: a manifest cannot be read.
    """
    entries = dict[str, tuple[str, str]]()
    with files.reading(folder / FOLDER):
        # Files that are being written have names that begin with a dot.
        for manifest in sorted((folder / FOLDER).glob("[!.]*.sha256")):
            rule = manifest.name.partition("-")[0]
            with files.reading(manifest):
                text = manifest.read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                if match := _LINE.fullmatch(line):
                    entries[match[2]] = (match[1], rule)
    return entries


def checked(path: Path) -> Path:
    """Return the path of a file after its SHA-256 was compared.

    Raises:
        BenchError: the file is missing, was changed, or is in no manifest. The message
            has the command that makes it again.
    """
    digest_of(path)
    return path


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, which must be the one in its manifest.

    Raises:
        BenchError: as `checked`.
    """
    digest, rule = listed(path.parent).get(path.name, ("", ""))
    with files.reading(path):
        present = files.sha256(path)
    if not digest:
        raise BenchError(
            f"{path} has no checksum in {FOLDER}/ beside it, so it cannot be"
            f" verified: {mend(path)}"
        )
    if present != digest:
        raise BenchError(
            f"{path} differs from what the rule {rule} wrote, so it is damaged or was"
            f" edited: {mend(path, rule)}"
        )
    return digest


def mend(path: Path, rule: str = "") -> str:
    """Return the end of an error message: the command that makes a file again."""
    parts = path.parts
    start = len(parts) - 1 - parts[::-1].index(RESULTS) if RESULTS in parts else 0
    target = Path(*parts[start:])
    return (
        f"make it again with `snakemake --cores all {target} --forcerun"
        f" {rule or target}` (and the --configfile and --directory that it was made"
        " with); nothing was deleted"
    )
