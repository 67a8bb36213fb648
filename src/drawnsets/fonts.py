"""Rendering of characters in matplotlib's DejaVu fonts.

Another FreeType (it comes inside Pillow) may move a few pixels, so `library_versions`
names the versions that drawings depend on.
"""

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import PIL
import scipy
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageFilter, ImageFont, features

LIGHT_FACES = (
    "DejaVuSans",
    "DejaVuSerif",
    "DejaVuSansMono",
    "DejaVuSans-Oblique",
    "DejaVuSerif-Italic",
    "DejaVuSansMono-Oblique",
)
BOLD_FACES = (
    "DejaVuSans-Bold",
    "DejaVuSerif-Bold",
    "DejaVuSansMono-Bold",
    "DejaVuSans-BoldOblique",
    "DejaVuSerif-BoldItalic",
    "DejaVuSansMono-BoldOblique",
)

BOX = 40
"""Longer side of a rendered character, in pixels."""
CANVAS = 56
"""Side of the canvas in whose middle a character is rendered, in pixels."""
_FONT_SIZE = 96


def render(letter: str, face: str) -> np.ndarray:
    """Render the letter's filled shape in the middle of the canvas, uint8 0 or 1.

    Its longer side is 40 pixels.
    """
    shape = _font(face).getmask(letter, mode="L")
    canvas = Image.new("L", (CANVAS, CANVAS))
    picture = (
        Image.frombytes("L", shape.size, bytes(shape)) if all(shape.size) else canvas
    )
    box = picture.getbbox()
    if box is not None:
        picture = picture.crop(box)
        factor = BOX / max(picture.size)
        width, height = (max(1, round(side * factor)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BOX)
        canvas.paste(picture, ((CANVAS - width) // 2, (CANVAS - height) // 2))
    # A little blur rounds corners and stroke ends, where thinning would otherwise grow
    # spurs.
    return (np.asarray(canvas.filter(ImageFilter.GaussianBlur(1.25))) > 110).astype(
        np.uint8
    )


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # Basic layout: one letter needs no shaping. So no further library's version
    # matters.
    return ImageFont.truetype(
        _font_path(face), _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC
    )


@cache
def codes(face: str) -> frozenset[int]:
    """Return the code points of a face."""
    return frozenset(FT2Font(_font_path(face)).get_charmap())


def _font_path(face: str) -> str:
    return str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf")


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that can change a pixel of a drawing."""
    return {
        "pillow": PIL.__version__,
        "freetype": str(features.version("freetype2")),
        "matplotlib": matplotlib.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
