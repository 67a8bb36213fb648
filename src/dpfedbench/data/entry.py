"""Facts about a data set that are known before it is prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """A data set.

    Attributes:
        name: as in the configuration, in folder names and in tables.
        version: of its content as prepared here; changed when a pixel or a word may change.
        source: where it comes from.
        licence: its terms.
        read: makes it, as images by class, records or texts. It is called with the local data folder, or None without
            one; the folder where downloads are kept; and what to tell how far it is (`images.Progress`), or None.
        stands_in_for: the data set that a stand-in takes the place of; None for real data.
        recorded_sha256: of images.npy as prepared when this entry was written; None if no copy was at hand.
        holds: what a plan may know of it: "classes 64/16/20 x 600 of 32x32x3" (training, validation and test classes of
            so many images, of height, width and channels), "records 60000/10000 of 28x28x1" (training and test),
            "texts"; "" where only its files say it.
    """

    name: str
    source: str
    licence: str
    read: Callable[[Path | None, Path, Any], Any]
    version: str = "1"
    stands_in_for: str | None = None
    recorded_sha256: str | None = None
    holds: str = ""

    @property
    def stand_in(self) -> bool:
        """Whether results on it say nothing about a published number."""
        return self.stands_in_for is not None
