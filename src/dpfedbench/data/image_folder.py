"""Any folder of pictures as a data set, with one sub-folder per class.

The layout is that of torchvision's ImageFolder.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpfedbench.config.part import Settings, setting
from dpfedbench.data.folder_files import class_folders, data_files
from dpfedbench.data.images import (
    SPLITS,
    Progress,
    RawImages,
    shuffled_splits,
    with_progress,
)
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import DeepPixels, datasets, decoded_image, listed
from dpfedbench.errors import BenchError
from dpfedbench.files import check_readable, reading
from dpsum.randomness import stream

if TYPE_CHECKING:
    import PIL
    from PIL import Image, ImageOps
else:
    from dpsum.lazy import Lazy

    PIL = Lazy("PIL")
    Image = Lazy("PIL.Image")
    ImageOps = Lazy("PIL.ImageOps")


class SplitClasses(Settings):
    """Numbers of classes in each part of a few-shot data set."""

    train: int = setting(ge=1, doc="number of training classes")
    validation: int = setting(ge=0, doc="number of validation classes")
    test: int = setting(ge=1, doc="number of test classes")


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
        None, ge=2, doc="number of pictures used per class; null: all"
    )
    test_images: int | None = setting(
        None, ge=1, doc="number of test records per class"
    )
    split_classes: SplitClasses | None = setting(
        None, doc="split of a few-shot data set, in place of test_images"
    )


OPTIONS = ImageFolderOptions
"""Schema of this reader's options."""


def read(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    folder: str,
    size: int,
    channels: int,
    split_classes: Mapping[str, int] | None = None,
    test_images: int | None = None,
    images_per_class: int | None = None,
) -> RawImages | RawRecords:
    """Read the pictures of a folder with one sub-folder per class.

    The largest central square of each picture is resized with Lanczos's filter, so
    pictures may have different sizes and proportions. Transparent pixels become white.
    summary.json lists the original sizes. Splits are drawn at random, always in the
    same way for the same names of classes and files.

    Args:
        local: the local data folder; a relative `folder` lies below it.
        folder, size, channels, images_per_class: see `ImageFolderOptions`.
        split_classes: makes a few-shot data set, split by class.
        test_images: makes a data set of records, split by record.

    Raises:
        BenchError: the folder does not exist or has one class, a picture cannot be
            read, or the numbers do not fit.
    """
    if (split_classes is None) == (test_images is None):
        raise BenchError(
            f"{folder}: give either split_classes (split by class) or test_images"
            " (split by record)"
        )
    root = _find(folder, local)
    files = _list(root, images_per_class)
    if split_classes is not None:
        _check_classes(root, files, split_classes)
    for name, pictures in files.items():
        if test_images is not None and len(pictures) <= test_images:
            raise BenchError(
                f"{root / name} has {len(pictures)} pictures, but test_images is"
                f" {test_images}: lower test_images, or add pictures"
            )
    pixels, sizes = _read_all(root, files, size, channels, progress)
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
        counts = (
            split_classes["train"],
            split_classes["validation"],
            split_classes["test"],
        )
        return RawImages(
            images=np.stack(pixels), splits=shuffled_splits(len(files), counts), **facts
        )
    labels = [
        np.full(len(pictures), label, dtype=np.int64)
        for label, pictures in enumerate(pixels)
    ]
    return RawRecords(
        train_images=np.concatenate([pictures[test_images:] for pictures in pixels]),
        train_labels=np.concatenate([pictures[test_images:] for pictures in labels]),
        test_images=np.concatenate([pictures[:test_images] for pictures in pixels]),
        test_labels=np.concatenate([pictures[:test_images] for pictures in labels]),
        **facts,
    )


def _find(folder: str, local: Path | None) -> Path:
    path = Path(folder).expanduser()
    if not path.is_absolute():
        if local is None:
            raise BenchError(
                f"the image folder {folder} is relative to the local data folder,"
                " which is not set: set data.local_dir (or DPFEDBENCH_DATA), or give"
                " an absolute path"
            )
        path = local / path
    if not path.is_dir():
        raise BenchError(
            f"the image folder {path} does not exist: correct the data set's"
            " options.folder"
        )
    check_readable(path)
    return path


def _list(root: Path, images_per_class: int | None) -> dict[str, list[Path]]:
    """Return the pictures of each class, in random but fixed order."""
    with reading(root):
        classes = class_folders(root)
        paths = data_files(root, suffixes=datasets.folder.IMG_EXTENSIONS)
    if not classes:
        raise BenchError(
            f"{root} has no sub-folders: put the pictures of each class in a sub-folder"
        )
    if len(classes) < 2:
        raise BenchError(
            f"{root} has only one class ({classes[0]}): put the pictures of at least"
            " two classes there, each in its own sub-folder"
        )
    files: dict[str, list[Path]] = {name: [] for name in classes}
    for path in paths:
        label, *inner_parts = path.relative_to(root).parts
        if inner_parts:
            files[label].append(path)
    for name, pictures in files.items():
        needed = len(pictures) if images_per_class is None else images_per_class
        if not pictures or len(pictures) < needed:
            raise BenchError(
                f"{root / name} has {len(pictures)} pictures, not {needed or 'any'}:"
                " add some, remove the sub-folder"
                + (", or lower images_per_class" if pictures else "")
            )
        pictures.sort()
        order = stream(1, f"image-split/{name}").permutation(len(pictures))
        files[name] = [pictures[index] for index in order[:needed]]
    return files


def _check_classes(
    root: Path, files: Mapping[str, list[Path]], split_classes: Mapping[str, int]
) -> None:
    if sorted(split_classes) != sorted(SPLITS) or sum(split_classes.values()) != len(
        files
    ):
        counts = ", ".join(f"{split} {count}" for split, count in split_classes.items())
        raise BenchError(
            f"{root} has {len(files)} classes, but split_classes assigns"
            f" {sum(split_classes.values())} ({counts}): give {', '.join(SPLITS)},"
            f" numbers that add up to {len(files)}"
        )
    fewest = min(files, key=lambda name: len(files[name]))
    most = max(files, key=lambda name: len(files[name]))
    if len(files[fewest]) != len(files[most]):
        raise BenchError(
            f"{root / fewest} has {len(files[fewest])} pictures and {most} has"
            f" {len(files[most])}, but a data set split by class needs equally many:"
            f" add some to {fewest}, take its folder away, or set images_per_class to"
            f" at most {len(files[fewest])}"
        )


def _read_all(
    root: Path,
    files: Mapping[str, list[Path]],
    size: int,
    channels: int,
    progress: Progress | None,
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
        images, with_progress(paths, progress, f"reading {root.name}"), strict=True
    ):
        try:
            image[:], source = _decode(path, size, channels)
            sizes[source] += 1
        except _Unreadable as error:
            unreadable.append(f"{path.relative_to(root)} ({error})")
    if unreadable:
        raise BenchError(
            f"{len(unreadable)} of the {len(paths)} pictures in {root} cannot be read: "
            f"{listed(unreadable)}: replace or remove them"
        )
    if progress and set(sizes) != {(size, size)}:
        message = (
            f"pictures of {len(sizes)} sizes, cut to their middle square and resized to"
            f" {size}"
        )
        progress(message, len(paths), len(paths))
    return pixels, sizes


class _Unreadable(Exception):
    pass


def _decode(path: Path, size: int, channels: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return a picture and its original width and height.

    The picture is uint8 [size, size, channels].
    """
    try:
        picture = ImageOps.exif_transpose(decoded_image(path))
    except BenchError:
        raise
    except DeepPixels as error:
        raise _Unreadable(str(error)) from error
    except Exception as error:  # including faults in its orientation tag
        raise _Unreadable(f"{type(error.__cause__ or error).__name__}") from error
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(
            Image.new("RGBA", picture.size, "white"), picture
        )
    side = min(picture.size)
    (width, height) = picture.size
    x_offset = (width - side) // 2
    top = (height - side) // 2
    square = picture.convert("L" if channels == 1 else "RGB").crop(
        (x_offset, top, x_offset + side, top + side)
    )
    resized = square.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(resized).reshape(size, size, channels), (width, height)
