"""Omniglot: 1,623 handwritten characters of 50 alphabets (Lake et al. 2015).

Each character was drawn by 20 people.
"""

from pathlib import Path

import numpy as np
import PIL

from dpfedbench.data.images import RawImages, shuffled_splits
from dpfedbench.data.sources import Source, by_class

PARTS = {"images_background": 964, "images_evaluation": 659}
DRAWINGS = 20
SOURCE_SIZE = 105
SIZE = 28
SPLIT_COUNTS = (1150, 50, 423)
"""Train, validation and test classes: Table 1 of DP-FedMeta (71 : 3 : 26)."""

_SOURCE = Source(
    name="Omniglot",
    folders=("omniglot", "omniglot-py"),
    parts={part: (f"{part}.zip", part) for part in PARTS},
    check="download: published MD5; local copy: 964 + 659 characters, 20 drawings of"
    " 105x105 each",
    downloaded=True,
    copy_bytes=14_126_819,
)
PLACES = {"omniglot": _SOURCE}


def read_omniglot(local: Path | None, download_dir: Path) -> RawImages:
    """Read Omniglot, resized to 28×28, strokes bright (255) on dark (0).

    Drawings are converted to greyscale and then resized from 105×105 with Lanczos's
    filter, as in MAML's code. (That code resizes the one-bit image, for which Pillow
    silently uses the nearest pixel. Here the conversion comes first, so that strokes
    stay connected.) Classes are sorted by their paths, independently of the file
    system.

    Args:
        local: local data folder with `omniglot/images_background.zip` and
            `omniglot/images_evaluation.zip`, or the two folders extracted. Zip files
            that were packed again have other checksums than the release, so a local
            copy is checked by its content: CRCs, 964 + 659 characters, 20 drawings
            each, 105×105.

    Raises:
        BenchError: there is no copy and no network, or the copy is damaged or
            incomplete.
    """
    images = []
    names = list[str]()
    copies = _SOURCE.find(local)
    for part, characters in PARTS.items():
        copy = copies.get(part)
        if copy is None:
            published = _SOURCE.published
            url = f"{published.download_url_prefix}/{part}.zip"
            copy = _SOURCE.fetch(url, published.zips_md5[part], download_dir)
        classes = by_class(
            sorted(copy.files), r"(?:^|/)([^/]+/character\d+)/\d+_\d+\.png$"
        )
        if len(classes) != characters:
            raise copy.damaged(f"it has {len(classes)} characters, not {characters}")
        grey = copy.pictures(
            classes,
            examples=DRAWINGS,
            mode="L",
            size=SOURCE_SIZE,
            side=SIZE,
        )
        images.append(255 - grey)
        names += [f"{part.removeprefix('images_')}/{name}" for name in classes]
    return RawImages(
        images=np.concatenate(images),
        class_names=tuple(names),
        splits=shuffled_splits(len(names), SPLIT_COUNTS),
        versions={"pillow": PIL.__version__},
    )


READERS = {"omniglot": read_omniglot}
