"""Any folder of pictures as a data set, with one sub-folder per class.

The layout is that of torchvision's ImageFolder. Pictures may have owners: a pattern of
their names, or a CSV file, tells them.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpfedbench.config.part import Settings, setting
from dpfedbench.data.folder_files import (
    class_folders,
    data_files,
    folder_of,
    read_table,
)
from dpfedbench.data.images import (
    RawImages,
    shuffled_splits,
    with_progress,
)
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import decoded_image
from dpfedbench.errors import BenchError
from dpsum.randomness import stream

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of pictures' names: those of torchvision's ImageFolder.

They are written out because the plan lists pictures, and torchvision takes seconds to
import.
"""


class SplitClasses(Settings):
    """Numbers of classes in each part of a few-shot data set."""

    train: int = setting(ge=1, doc="number of training classes")
    validation: int = setting(ge=0, doc="number of validation classes")
    test: int = setting(ge=1, doc="number of test classes")

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of training, validation and test classes."""
        return self.train, self.validation, self.test


class ImageFolderOptions(Settings):
    """Arguments of `read` in a configuration."""

    folder: str = setting(
        doc=(
            "folder with one sub-folder per class; absolute, or below the"
            " local data folder"
        )
    )
    size: int = setting(ge=8, le=1024, doc="height and width after resizing, in pixels")
    channels: Literal[1, 3] = setting(doc="1: grey; 3: colour")
    images_per_class: int | None = setting(
        None, ge=2, doc="largest number of pictures used per class; null: all"
    )
    test_images: int | None = setting(
        None, ge=1, doc="number of test records per class"
    )
    split_classes: SplitClasses | None = setting(
        None, doc="split of a few-shot data set, in place of test_images"
    )
    owner: str | None = setting(
        None,
        doc=(
            "regular expression that finds a picture's owner in its path below the"
            ' folder: its first group, for instance "(user\\d+)_"; null: no owners'
        ),
    )
    owners: str | None = setting(
        None,
        doc=(
            "CSV file in the folder with the columns `file` (path below the folder) and"
            " `owner`, in place of the pattern `owner`"
        ),
    )


OPTIONS = ImageFolderOptions
"""Schema of this reader's options."""


def read(
    local: Path | None, download_dir: Path, **options: Any
) -> RawImages | RawRecords:
    """Read the pictures of a folder with one sub-folder per class.

    The largest central square of each picture is resized with Lanczos's filter, so
    pictures may have different sizes and proportions. Transparent pixels become white.
    summary.json lists the original sizes. Splits are drawn at random, always in the
    same way for the same names of classes and files.

    Args:
        local: the local data folder; a relative `folder` lies below it.
        options: see `ImageFolderOptions`. `split_classes` makes a few-shot data set,
            split by class; `test_images` makes a data set of records.

    Raises:
        BenchError: a picture cannot be read, or the numbers do not fit.
    """
    import PIL  # a plan reads the options without it

    chosen = ImageFolderOptions(**options)
    split_classes = chosen.split_classes
    test_images = chosen.test_images
    if (split_classes is None) == (test_images is None):
        raise BenchError(
            f"{chosen.folder}: give either split_classes (split by class) or"
            " test_images (split by record)"
        )
    root = folder_of(chosen.folder, local)
    files = _list(root, chosen.images_per_class)
    counts = {name: len(pictures) for name, pictures in files.items()}
    if split_classes is not None:
        _check_classes(root, counts, split_classes)
    for name, count in counts.items():
        if test_images is not None and count <= test_images:
            raise BenchError(
                f"{root / name} has {count} pictures, but test_images is"
                f" {test_images}: lower test_images, or add pictures"
            )
    names = _owners(root, files, chosen)
    pixels, sizes = _read_all(root, files, chosen.size, chosen.channels)
    facts: dict[str, Any] = {
        "class_names": tuple(files),
        "versions": {"pillow": PIL.__version__},
        "facts": {
            "source_sizes": {
                f"{width}x{height}": count
                for (width, height), count in sorted(sizes.items())
            }
        },
    }
    if split_classes is not None:
        return RawImages(
            images=np.stack(pixels),
            splits=shuffled_splits(len(files), split_classes.counts),
            owners=None if names is None else np.stack(names),
            **facts,
        )
    train_pictures = [pictures[test_images:] for pictures in pixels]
    test_pictures = [pictures[:test_images] for pictures in pixels]
    labels = np.arange(len(files))
    if names is not None:
        facts["train_owners"] = np.concatenate([held[test_images:] for held in names])
        facts["test_owners"] = np.concatenate([held[:test_images] for held in names])
    return RawRecords(
        train_images=np.concatenate(train_pictures),
        train_labels=labels.repeat([len(pictures) for pictures in train_pictures]),
        test_images=np.concatenate(test_pictures),
        test_labels=labels.repeat([len(pictures) for pictures in test_pictures]),
        **facts,
    )


def tells_owners(**options: Any) -> bool:
    """Return whether these options tell the owners of pictures."""
    chosen = ImageFolderOptions(**options)
    return chosen.owner is not None or chosen.owners is not None


def holds(local: Path | None, **options: Any) -> str:
    """Return the contents as in `data.DATASETS_TABLE`. No picture is opened.

    Arguments as for `read`. Without the folder there are no counts.
    """
    chosen = ImageFolderOptions(**options)
    kind = "records" if chosen.split_classes is None else "classes"
    root = folder_of(chosen.folder, local)
    if not root.is_dir():
        return kind
    files = _list(root, chosen.images_per_class)
    counts = [len(pictures) for pictures in files.values()]
    if not counts:
        return kind
    if chosen.split_classes is not None:
        split_counts = "/".join(map(str, chosen.split_classes.counts))
        return f"classes {split_counts} x {min(counts)}"
    tested = (chosen.test_images or 0) * len(counts)
    return f"records {sum(counts) - tested}/{tested}"


def owner_counts(local: Path | None, **options: Any) -> np.ndarray | None:
    """Return the number of training pictures of each owner in each training class.

    No picture is opened. Arguments as for `read`.

    Returns:
        int64 [owners, training classes]; None where no owners are told.

    Raises:
        BenchError: a picture has no owner.
    """
    chosen = ImageFolderOptions(**options)
    split_classes = chosen.split_classes
    root = folder_of(chosen.folder, local)
    files = _list(root, chosen.images_per_class)
    names = _owners(root, files, chosen)
    if names is None:
        return None
    if split_classes is None:
        trained = [held[chosen.test_images :] for held in names]
    else:
        _check_classes(root, {name: len(files[name]) for name in files}, split_classes)
        splits = shuffled_splits(len(files), split_classes.counts)
        trained = [
            held for held, split in zip(names, splits, strict=True) if split == "train"
        ]
    everyone = np.unique(np.concatenate(names))
    counts = [
        np.bincount(np.searchsorted(everyone, held), minlength=len(everyone))
        for held in trained
    ]
    return np.stack(counts, axis=1)


def _owners(
    root: Path, files: Mapping[str, list[Path]], options: ImageFolderOptions
) -> list[np.ndarray] | None:
    """Return the owners of each class's pictures, text; None where none are told.

    Raises:
        BenchError: a picture has no owner; names it and their number.
    """
    pattern = options.owner
    table = options.owners
    if pattern is None and table is None:
        return None
    if pattern is not None and table is not None:
        raise BenchError(f"{root}: give either owner (a pattern) or owners (a file)")
    if pattern is not None:
        find = _pattern_of(pattern)
        source = f"the pattern owner, {pattern!r}, finds none"
    else:
        assert table is not None
        find = _listed_owners(root / table).get
        source = f"{root / table} lists none"
    ownerless = list[str]()
    names = []
    for pictures in files.values():
        owners_of_class = []
        for path in pictures:
            file = path.relative_to(root).as_posix()
            name = (find(file) or "").strip()
            if not name:
                ownerless.append(file)
            owners_of_class.append(name)
        names.append(np.array(owners_of_class, dtype=np.str_))
    if ownerless:
        raise BenchError(
            f"{len(ownerless)} pictures in {root} have no owner, for instance"
            f" {ownerless[0]}: {source}"
        )
    return names


def _pattern_of(pattern: str) -> Callable[[str], str | None]:
    """Return the function that finds an owner in a path.

    Raises:
        BenchError: the pattern is no regular expression, or has no group.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BenchError(
            f"owner is {pattern!r}, which is no regular expression ({error}): correct it"
        ) from error
    if not compiled.groups:
        raise BenchError(
            f"owner is {pattern!r}, which has no group: put the owner's part in brackets"
        )

    def find(path: str) -> str | None:
        match = compiled.search(path)
        return None if match is None else match[1]

    return find


def _listed_owners(path: Path) -> dict[str, str]:
    """Return the owners of a CSV file, by picture.

    Raises:
        BenchError: the file is missing, lacks a column, or lists a picture twice.
    """
    try:
        rows = read_table(path)
        pairs = [(row["file"], row["owner"]) for row in rows]
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise BenchError(
            f"{path} cannot be read ({error}): it needs the columns file and owner"
        ) from error
    owners = dict(pairs)
    if len(owners) < len(pairs):
        listed = Counter(name for name, _ in pairs)
        twice = next(name for name, count in listed.items() if count > 1)
        raise BenchError(f"{path} lists {twice} twice: list each picture once")
    return owners


def _list(root: Path, images_per_class: int | None) -> dict[str, list[Path]]:
    """Return the pictures of each class, in random but fixed order."""
    files: dict[str, list[Path]] = {}
    for name in class_folders(root):
        pictures = [
            path
            for path in data_files(root / name)
            if path.name.lower().endswith(ENDINGS)
        ]
        order = stream(1, f"image-split/{name}").permutation(len(pictures))
        files[name] = [pictures[index] for index in order[:images_per_class]]
    return files


def _check_classes(
    root: Path, counts: Mapping[str, int], split_classes: SplitClasses
) -> None:
    assigned = sum(split_classes.counts)
    if assigned != len(counts):
        raise BenchError(
            f"{root} has {len(counts)} classes, but split_classes assigns {assigned}:"
            f" give numbers that add up to {len(counts)}"
        )
    fewest, most = min(counts.values()), max(counts.values())
    if fewest != most:
        raise BenchError(
            f"the classes of {root} have {fewest} to {most} pictures, but a data set"
            " split by class needs equally many: set images_per_class to at most"
            f" {fewest}, or add pictures"
        )


def _read_all(
    root: Path,
    files: Mapping[str, list[Path]],
    size: int,
    channels: int,
) -> tuple[list[np.ndarray], Counter[tuple[int, int]]]:
    """Read each class's pictures, uint8 [pictures, size, size, channels].

    The second result counts the pictures of each original width and height.
    """
    pixels = [
        np.zeros((len(pictures), size, size, channels), dtype=np.uint8)
        for pictures in files.values()
    ]
    images = (image for class_pixels in pixels for image in class_pixels)
    paths = [path for pictures in files.values() for path in pictures]
    sizes = Counter[tuple[int, int]]()
    unreadable = list[str]()
    for image, path in zip(
        images, with_progress(paths, f"reading {root.name}"), strict=True
    ):
        try:
            image[:], source = square_pixels(decoded_image(path), size, channels)
            sizes[source] += 1
        except Exception as error:  # a damaged file can raise nearly anything
            unreadable.append(f"{path.relative_to(root)} ({error})")
    if unreadable:
        raise BenchError(
            f"{len(unreadable)} of the {len(paths)} pictures in {root} cannot be read: "
            f"{', '.join(unreadable[:3])}: replace or remove them"
        )
    return pixels, sizes


def square_pixels(
    decoded: "Image.Image", size: int, channels: int
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the middle square of a picture, resized, and its width and height.

    The square is uint8 [size, size, channels].
    """
    from PIL import Image, ImageOps  # a plan counts pictures without it

    picture = ImageOps.exif_transpose(decoded)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(
            Image.new("RGBA", picture.size, "white"), picture
        )
    width, height = picture.size
    side = min(width, height)
    left = (width - side) // 2
    top = (height - side) // 2
    square = picture.convert("L" if channels == 1 else "RGB").crop(
        (left, top, left + side, top + side)
    )
    resized = square.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(resized).reshape(size, size, channels), picture.size
