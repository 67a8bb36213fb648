"""glyphs: 1,623 letters × 20 drawings, 28×28, made from matplotlib's fonts.

It is a stand-in for Omniglot. A letter of a DejaVu face is thinned to its skeleton, the
line that a pen would follow. Each drawing takes one face's skeleton, bends it with its
own affine map and smooth elastic field, and traces it with a pen of its own width.
Letters come from Latin, Greek, Cyrillic, Armenian, Georgian, Hebrew, Arabic, Lao, Lisu,
Tifinagh, Canadian syllabics and more. Of letters that look alike (Latin A, Greek Alpha,
Cyrillic A), only one is used.

glyph-symbols are symbols, digits and punctuation, drawn in the same way. They are
public data: a federation on `glyphs` may start from a model trained on them. No symbol
is a letter or looks like a character of `glyphs`, and no two look alike. So they
contain no class of a client or of a test. `tools/choose_letters.py` chose the
characters of both sets once.

Every pixel follows from the fonts, this file and a fixed seed. Skeletons are computed
from FreeType's rendering, so another FreeType (it comes inside Pillow) may move a few
pixels. summary.json records the versions and states whether the checksum is the
recorded one.
"""

import unicodedata
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import PIL
import scipy
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageFilter, ImageFont, features
from scipy import ndimage

from dpfedbench.data.images import Progress, RawImages, shuffled_splits, with_progress
from dpsum.randomness import stream

DRAWINGS = 20
SIZE = 28
LETTERS = "glyph_letters.txt"
SYMBOLS = "glyph_symbols.txt"
SPLIT_COUNTS = (1150, 50, 423)
SYMBOL_SPLIT_COUNTS = (500, 50, 50)
SEED = 20150
"""Seed of the drawings. It is part of the data set, independent of any run's seed."""

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
FEWEST_FACES = 4
"""Least number of light faces of a letter.

Letters with fewer light faces use bold ones as well, whose skeletons are a little
rougher.
"""

# Skeletons: letter box and canvas in source pixels. Two source pixels are one pixel of
# a drawing.
BOX = 40
_CANVAS = 56
_FONT_SIZE = 96
_SCALE = BOX / 20
# Drawings are traced on a wider canvas and then cut, so that no stroke is lost.
WIDE = 40
_ROOM = 26  # the largest extent of a drawing's ink, in pixels
# Pictures traced at once, so that intermediate values stay in the cache. No pixel
# depends on it.
_TOGETHER = 10

# How drawings differ. The values are chosen so that ink, pixel distances and few-shot
# accuracy come near Omniglot's.
_ROTATION = 0.1  # standard deviation, in radians
_SHEAR = 0.1  # share
_LOG_SCALE, _LOG_ASPECT = 0.10, 0.08  # natural logarithms
_ELASTIC, _KNOTS = 0.7, 5  # pixels at each of 5×5 knots
_SHIFT = 1.2  # pixels
_PEN = (0.62, 0.86)  # half widths, pixels


def draw_all(
    listed_in: str,
    counts: tuple[int, int, int],
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
) -> RawImages:
    """Draw all characters of a set. It reads no data.

    Args:
        listed_in: file of this folder that lists the characters.
        counts: number of characters in each split.
        local, download_dir: not used.
        progress: called after each character.
    """
    characters = listed(listed_in)
    images = np.empty((len(characters), DRAWINGS, SIZE, SIZE, 1), dtype=np.uint8)
    for drawings, character in zip(
        images, with_progress(characters, progress, "drawing characters"), strict=True
    ):
        drawings[..., 0] = draw_letter(character)
    splits = shuffled_splits(len(characters), counts)
    return RawImages(
        images=images,
        class_names=class_names(characters),
        splits=splits,
        versions=library_versions(),
    )


def listed(name: str) -> tuple[str, ...]:
    """Return the characters that a file of this folder lists, in ascending order.

    The file has code points in hexadecimal; ranges are written first-last.
    """
    text = resources.files("dpfedbench.data").joinpath(name).read_text(encoding="ascii")
    codes: list[int] = []
    for run in " ".join(line.partition("#")[0] for line in text.splitlines()).split():
        first, _, last = run.partition("-")
        codes.extend(range(int(first, 16), int(last or first, 16) + 1))
    return tuple(map(chr, codes))


def draw_letter(letter: str) -> np.ndarray:
    """Draw all drawings of one letter.

    Returns:
        uint8 [20, 28, 28], strokes bright (255) on dark (0). Every stroke lies
        completely within the image.
    """
    fields = distance_fields(letter)
    rng = stream(SEED, "glyphs", ord(letter))
    # Each face is used once before a face is used again.
    faces = np.concatenate(
        [rng.permutation(len(fields)) for _ in range(-(-DRAWINGS // len(fields)))]
    )[:DRAWINGS]
    bends = Bends.drawn(
        rng, DRAWINGS, (_ROTATION, _SHEAR, _LOG_SCALE, _LOG_ASPECT), _ELASTIC
    )
    shift = rng.standard_normal((DRAWINGS, 2)) * _SHIFT
    pen = rng.uniform(*_PEN, DRAWINGS)
    ink = np.empty((DRAWINGS, WIDE, WIDE))
    todo = np.arange(DRAWINGS)
    while len(todo):
        ink[todo] = trace(fields, faces[todo], bends.select(todo), pen[todo])
        first, extent = _extent(ink)
        largest = extent.max(axis=1)
        todo = np.flatnonzero(largest > _ROOM)
        bends.scale[todo] *= 0.98 * _ROOM / largest[todo]
    # Centre, shift at random, and keep the ink one pixel away from the edge.
    start = np.rint(first + (extent - SIZE) / 2 - shift).astype(int)
    start = np.clip(start, first + extent + 1 - SIZE, first - 1)
    padded = np.pad(ink, ((0, 0), (SIZE, SIZE), (SIZE, SIZE)))
    drawings = [
        picture[row + SIZE : row + 2 * SIZE, column + SIZE : column + 2 * SIZE]
        for picture, (row, column) in zip(padded, start, strict=True)
    ]
    return np.rint(np.stack(drawings) * 255).astype(np.uint8)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that can change a pixel of a drawing."""
    return {
        "pillow": PIL.__version__,
        "freetype": str(features.version("freetype2")),
        "matplotlib": matplotlib.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def class_names(letters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the characters' code points and Unicode names."""
    return tuple(
        f"U+{ord(letter):04X} {unicodedata.name(letter, '')}".strip()
        for letter in letters
    )


class Bends(NamedTuple):
    """Deformations of n drawings.

    Attributes:
        angle: [n], radians.
        shear: [n], columns per row.
        scale: [n], 1 for a longer side of 20 pixels.
        aspect: [n], square root of height divided by width.
        elastic: [n, 2, 5, 5], displacement of rows and columns at each knot, in pixels.
    """

    angle: np.ndarray
    shear: np.ndarray
    scale: np.ndarray
    aspect: np.ndarray
    elastic: np.ndarray

    @classmethod
    def drawn(
        cls,
        rng: np.random.Generator,
        count: int,
        spreads: tuple[float, ...],
        elastic: float,
    ) -> "Bends":
        """Draw random deformations.

        Args:
            rng: random stream.
            count: number of drawings.
            spreads: standard deviations of angle, shear, and the logarithms of scale
                and aspect.
            elastic: standard deviation of the displacements, in pixels.
        """
        angle, shear, log_scale, log_aspect = (
            rng.standard_normal((4, count)) * np.array(spreads)[:, None]
        )
        knots = rng.standard_normal((count, 2, _KNOTS, _KNOTS)) * elastic
        return cls(angle, shear, np.exp(log_scale), np.exp(log_aspect), knots)

    def select(self, some: np.ndarray | slice) -> "Bends":
        """Return the deformations of a selection of the drawings."""
        return Bends(*(values[some] for values in self))


def trace(
    fields: np.ndarray,
    faces: np.ndarray,
    bends: Bends,
    pen: np.ndarray,
    start: np.ndarray | None = None,
    size: int = WIDE,
) -> np.ndarray:
    """Trace shapes on canvases of 40×40 pixels, or on a part of each canvas.

    Args:
        fields: [faces, 56, 56], distance of each source pixel from the line to be
            traced, for shapes of `render`.
        faces: int [n], index of each drawing's face.
        bends: deformations of the drawings.
        pen: [n], half widths of the pens, in pixels.
        start: int [n, 2], first row and column of the part. None: those of the canvas.
        size: rows and columns of the part.

    Returns:
        Ink in [0, 1], [n, size, size].
    """
    start = np.zeros((len(pen), 2), int) if start is None else start
    pieces = [
        slice(first, first + _TOGETHER) for first in range(0, len(pen), _TOGETHER)
    ]
    return np.concatenate(
        [
            _trace(
                fields[faces[piece]],
                bends.select(piece),
                pen[piece],
                start[piece],
                size,
            )
            for piece in pieces
        ]
    )


def _trace(
    fields: np.ndarray, bends: Bends, pen: np.ndarray, start: np.ndarray, size: int
) -> np.ndarray:
    at = np.arange(size) + start.T[:, :, None]
    down, across = _knot_weights()[at]
    bend = np.einsum(
        "ndpj,nqj->ndpq", np.einsum("npi,ndij->ndpj", down, bends.elastic), across
    )
    row_offset, column_offset = at - (WIDE - 1) / 2
    rows = row_offset[:, :, None] + bend[:, 0]
    columns = column_offset[:, None, :] + bend[:, 1]
    # Map a drawing's pixel back to the skeleton: rotate, shear, scale.
    angle, shear, scale, aspect = (values[:, None, None] for values in bends[:4])
    cosine = np.cos(angle)
    sine = np.sin(angle)
    middle = (_CANVAS - 1) / 2
    back_rows = (cosine * rows + sine * columns) / (scale * aspect) * _SCALE
    back_columns = (cosine * columns - sine * rows) / (
        scale / aspect
    ) * _SCALE + shear * back_rows
    distance = _interpolate(fields, back_rows + middle, back_columns + middle)
    distance *= scale / _SCALE
    return np.clip(pen[:, None, None] + 0.5 - distance, 0, 1)


def _interpolate(
    fields: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Interpolate bilinearly.

    Beyond the canvas, the distance to its edge is added.
    """
    inside_rows, inside_columns = (
        np.clip(coordinates, 0, _CANVAS - 1.001) for coordinates in (rows, columns)
    )
    row = inside_rows.astype(np.int32)
    column = inside_columns.astype(np.int32)
    down = inside_rows - row
    right = inside_columns - column
    flat = fields.ravel()
    at = (
        np.arange(len(fields), dtype=np.int32)[:, None, None] * _CANVAS + row
    ) * _CANVAS + column
    upper = flat[at] * (1 - right) + flat[at + 1] * right
    lower = flat[at + _CANVAS] * (1 - right) + flat[at + _CANVAS + 1] * right
    return (
        upper * (1 - down)
        + lower * down
        + abs(rows - inside_rows)
        + abs(columns - inside_columns)
    )


def _extent(ink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row and column with ink, and the extent of the ink.

    Both are int [n, 2]; the extent is in rows and columns.
    """
    first = []
    extent = []
    for axis in (2, 1):
        any_ink = np.any(np.asarray(ink > 0.02), axis=axis)
        begin = any_ink.argmax(axis=1)
        first.append(begin)
        extent.append(any_ink.shape[1] - any_ink[:, ::-1].argmax(axis=1) - begin)
    return np.stack(first, axis=1), np.stack(extent, axis=1)


@cache
def _knot_weights() -> np.ndarray:
    """Return smooth bumps, one per knot, over the wide canvas: [wide, knots].

    The squares of each row sum to one.
    """
    knots = np.linspace(-SIZE / 2, SIZE / 2, _KNOTS)
    spacing = knots[1] - knots[0]
    bumps = np.exp(
        -0.5
        * ((np.arange(WIDE)[:, None] - (WIDE - 1) / 2 - knots) / (0.6 * spacing)) ** 2
    )
    return bumps / np.sqrt((bumps**2).sum(axis=1, keepdims=True))


def distance_fields(letter: str) -> np.ndarray:
    """Return the distance of each source pixel to the letter's skeleton, in each face.

    The result is float64 [faces, 56, 56].
    """
    faces = [face for face in LIGHT_FACES if ord(letter) in codes(face)]
    if len(faces) < FEWEST_FACES:
        faces += [face for face in BOLD_FACES if ord(letter) in codes(face)][
            : FEWEST_FACES - len(faces)
        ]
    skeletons = thin(np.stack([render(letter, face) for face in faces]))
    fields = [ndimage.distance_transform_edt(skeleton == 0) for skeleton in skeletons]
    return np.stack(fields)


def render(letter: str, face: str) -> np.ndarray:
    """Render the letter's filled shape in the middle of the canvas, uint8 0 or 1.

    Its longer side is 40 pixels.
    """
    shape = _font(face).getmask(letter, mode="L")
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    picture = (
        Image.frombytes("L", shape.size, bytes(shape)) if all(shape.size) else canvas
    )
    box = picture.getbbox()
    if box is not None:
        picture = picture.crop(box)
        factor = BOX / max(picture.size)
        width, height = (max(1, round(side * factor)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BOX)
        canvas.paste(picture, ((_CANVAS - width) // 2, (_CANVAS - height) // 2))
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


def thin(shapes: np.ndarray) -> np.ndarray:
    """Thin shapes to lines one pixel wide, which stay connected.

    Guo and Hall 1989, "Parallel thinning with two-subiteration algorithms", by table:
    the eight neighbours of a pixel form an 8-bit number.

    Args:
        shapes: uint8 0 or 1, [n, size, size].
    """
    thinned = shapes.copy()
    active = np.arange(len(shapes))
    while len(active):
        current = thinned[active]
        changed = np.zeros(len(active), dtype=bool)
        for table in _thinning_tables():
            padded = np.pad(current, ((0, 0), (1, 1), (1, 1)))
            code = np.zeros_like(current)
            for bit, (row, column) in enumerate(_NEIGHBOURS):
                code |= padded[
                    :, row : row + _CANVAS, column : column + _CANVAS
                ] << np.uint8(bit)
            removed = table[code] & current
            changed |= removed.any(axis=(1, 2))
            current = current ^ removed
        thinned[active] = current
        active = active[changed]
    return thinned


# Clockwise from north: Guo and Hall's p2 ... p9, in a frame padded by one.
_NEIGHBOURS = ((0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0))


@cache
def _thinning_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return one table, uint8 [256], for each of the two sub-iterations.

    An entry states whether a pixel with these neighbours is removed.
    """
    tables = np.zeros((2, 256), dtype=np.uint8)
    for code in range(256):
        p2, p3, p4, p5, p6, p7, p8, p9 = (bool(code >> bit & 1) for bit in range(8))
        pieces = sum(
            (
                not p2 and (p3 or p4),
                not p4 and (p5 or p6),
                not p6 and (p7 or p8),
                not p8 and (p9 or p2),
            )
        )
        odd_pairs = sum((p9 or p2, p3 or p4, p5 or p6, p7 or p8))
        even_pairs = sum((p2 or p3, p4 or p5, p6 or p7, p8 or p9))
        if pieces == 1 and 2 <= min(odd_pairs, even_pairs) <= 3:
            tables[0, code] = not ((p2 or p3 or not p5) and p4)
            tables[1, code] = not ((p6 or p7 or not p9) and p8)
    return tables[0], tables[1]


READERS = {
    "glyphs": partial(draw_all, LETTERS, SPLIT_COUNTS),
    "glyph-symbols": partial(draw_all, SYMBOLS, SYMBOL_SPLIT_COUNTS),
}
