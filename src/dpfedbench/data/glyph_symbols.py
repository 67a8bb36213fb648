"""glyph-symbols: symbols, digits and punctuation, drawn as `glyphs` draws letters; public data beside it.

A federation on `glyphs` may start from a model of these. No character is a letter, none looks like a character of
`glyphs`, and no two look alike (`tools/choose_letters.py`). So no class of a client or of a test is among them.
"""

from pathlib import Path

from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.glyphs import LICENCE, SOURCE, draw_all, listed
from dpfedbench.data.images import Progress, RawImages

SYMBOLS = 600
SPLIT_COUNTS = (500, 50, 50)


def read_symbols() -> tuple[str, ...]:
    """The symbols of the set, ascending: what `tools/choose_letters.py` chose once."""
    return listed("glyph_symbols.txt")


def read_glyph_symbols(local: Path | None, download_dir: Path, progress: Progress | None = None) -> RawImages:
    """Draw the whole set; takes no data from anywhere, so that the folders are not used."""
    del local, download_dir
    return draw_all(read_symbols(), SPLIT_COUNTS, "symbols", progress)


ENTRIES = (
    DatasetEntry(
        name="glyph-symbols",
        holds="classes 500/50/50 x 20 of 28x28x1",
        source=f"{SOURCE}; no letter is among them",
        licence=LICENCE,
        read=read_glyph_symbols,
        recorded_sha256="80a0b98bc64d8203bd246faeb7c2c1919d118a23288c357fde7d0908d0797145",
    ),
)
