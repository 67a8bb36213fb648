"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people (Lake et al. 2015)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import PIL
from PIL import Image

from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.images import Progress, RawImages, shuffled_splits
from dpfedbench.data.sources import Source, fetch, find_local

if TYPE_CHECKING:
    from torchvision import datasets
else:
    from dpsum.lazy import Lazy

    datasets = Lazy("torchvision.datasets")  # slow to import, and not needed with a local copy

PARTS = {"images_background": 964, "images_evaluation": 659}
DRAWINGS = 20
SOURCE_SIZE = 105
SIZE = 28
_SOURCE = Source(name="Omniglot", largest=1 << 20)  # a drawing has a few hundred bytes
SPLIT_COUNTS = (1150, 50, 423)
"""Train, validation, test classes: Table 1 of DP-FedMeta (71 : 3 : 26)."""

_MEMBER = re.compile(r"(?:^|/)(images_\w+)/([^/]+)/(character\d+)/(\d+_\d+\.png)$")


def read_omniglot(local: Path | None, download_dir: Path, progress: Progress | None = None) -> RawImages:
    """Read Omniglot and bring it to 28×28, strokes bright (255) on dark (0).

    Drawings are turned to greyscale and then resized from 105×105 with Lanczos's filter, as in MAML's code.
    (That code resizes the one-bit image itself, for which Pillow quietly takes the nearest pixel; the
    conversion comes first here, so that strokes stay whole.) Classes are ordered by their path's characters,
    never by the file system.

    Args:
        local: a folder with `omniglot/images_background.zip` and `omniglot/images_evaluation.zip`, or the two
            folders extracted. Zip files packed anew have other checksums than the release, so a local copy is
            judged by its content: CRCs, 964 + 659 characters, 20 drawings each, 105×105.

    Raises:
        BenchError: no copy and no network; or a copy that is damaged or incomplete.
    """
    total, images, names = sum(PARTS.values()), [], []
    for part, characters in PARTS.items():
        path = find_local(local, ("omniglot", "omniglot-py"), (f"{part}.zip", part))
        if path is None:
            url = f"{datasets.Omniglot.download_url_prefix}/{part}.zip"
            path = fetch(url, datasets.Omniglot.zips_md5[part], download_dir, local=local, subfolder="omniglot")
        drawings = _read(path, part)
        _check_count(path, drawings, characters)
        for character in sorted(drawings):
            images.append(np.stack([_decode(path, name, read) for name, read in sorted(drawings[character])]))
            names.append("/".join((part.removeprefix("images_"), *character)))
            if progress:
                progress("reading Omniglot's characters", len(names), total)
    return RawImages(
        images=np.stack(images)[..., None],
        class_names=tuple(names),
        splits=shuffled_splits(total, SPLIT_COUNTS),
        versions={"pillow": PIL.__version__},
    )


_Drawings = defaultdict[tuple[str, str], list[tuple[str, Callable[[], bytes]]]]


def _read(path: Path, part: str) -> _Drawings:
    prefix, drawings = f"{part}/" if path.is_dir() else "", _Drawings(list)
    for name, read in _SOURCE.files(path).items():
        match = _MEMBER.search(prefix + name)
        if match and match[1] == part:
            drawings[match[2], match[3]].append((match[4], read))
    return drawings


def _check_count(path: Path, drawings: _Drawings, characters: int) -> None:
    if len(drawings) != characters:
        raise _SOURCE.damaged(path, f"it has {len(drawings)} characters, not {characters}")
    for (alphabet, character), files in sorted(drawings.items()):
        if len(files) != DRAWINGS:
            raise _SOURCE.damaged(path, f"{alphabet}/{character} has {len(files)} drawings, not {DRAWINGS}")


def _decode(path: Path, name: str, read: Callable[[], bytes]) -> np.ndarray:
    grey = _SOURCE.picture(path, name, read, SOURCE_SIZE, "L")
    return 255 - np.asarray(grey.resize((SIZE, SIZE), Image.Resampling.LANCZOS))


ENTRIES = (
    DatasetEntry(
        name="omniglot",
        holds="classes 1150/50/423 x 20 of 28x28x1",
        source="https://github.com/brendenlake/omniglot",
        licence="MIT",
        read=read_omniglot,
        recorded_sha256="910224a05d7f301fbb9fa895855b3a938b8eb033955546561619f310416718ab",
    ),
)
