"""A results folder as one file to share.

The archive has the frames of runs and cells, all tables and figures, the page and the
provenance, without models, ledgers or data. `verification.compare` compares two.
"""

import zipfile
from collections.abc import Iterable
from pathlib import Path

from dpfedbench.files import atomic_path

_FIXED_DATE = (1980, 1, 1, 0, 0, 0)


def write_archive(folder: str | Path, files: Iterable[str | Path], path: Path) -> None:
    """Write files of a results folder into a ZIP archive: the same bytes each time.

    Args:
        folder: the results folder, from which names in the archive are relative.
        files: the files to pack.
        path: of the archive.
    """
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for file in sorted(map(Path, files)):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _FIXED_DATE)
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
