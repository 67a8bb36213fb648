"""mini-ImageNet: 100 ImageNet classes × 600 (Vinyals et al. 2016), split as by Ravi and Larochelle (2017)."""

from pathlib import Path

import numpy as np
import PIL
from PIL import Image, UnidentifiedImageError

from dpfedbench.data.images import SPLITS, Progress, RawImages
from dpfedbench.data.sources import ENVIRONMENT, find_local, read_pickle
from dpfedbench.errors import BenchError

CLASSES = {"train": 64, "validation": 16, "test": 20}
EXAMPLES = 600
SIZE = 84
SUBFOLDER = "mini-imagenet"
_SPELLINGS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}
_SUFFIXES = {".jpg", ".jpeg", ".png"}


def read_mini_imagenet(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    classes: dict[str, int] | None = None,
    examples: int = EXAMPLES,
) -> RawImages:
    """Read mini-ImageNet, 84×84 colour, from a local folder; ImageNet's terms ask for consent first.

    Args:
        local: a folder with, in itself or in `mini-imagenet/`, the usual
            `mini-imagenet-cache-{train,val,test}.pkl` (dicts of `image_data`, uint8 [n, 84, 84, 3], and
            `class_dict`, WordNet id to rows), or one folder of classes per split,
            `{train,val,test}/WNID/*.jpg`, whose images are resized with Lanczos's filter.
        download_dir: not used; nothing is downloaded.
        progress: told after each split (pickles) or class (folders).
        classes: how many classes each split must have (tests use tiny sets).
        examples: how many images each class must have.

    Raises:
        BenchError: no copy; or a copy that is damaged or incomplete.
    """
    del download_dir
    classes = classes or CLASSES
    images, names, splits = [], [], []
    for done, split in enumerate(SPLITS, start=1):
        spellings = _SPELLINGS[split]
        pickles = tuple(f"mini-imagenet-cache-{spelling}.pkl" for spelling in spellings)
        path = find_local(local, (SUBFOLDER, "miniimagenet"), pickles + spellings)
        if path is None:
            raise _missing(pickles[0], spellings[0], local)
        if path.is_dir():
            found = _read_folder(path, classes[split], examples, progress)
        else:
            found = _read_cache(path, examples)
            if progress:
                progress("reading mini-ImageNet", done, len(SPLITS))
        if len(found) != classes[split]:
            raise _damaged(path, f"it has {len(found)} classes, not {classes[split]}")
        for name in sorted(found):
            images.append(found[name])
            names.append(name)
            splits.append(split)
    if len(set(names)) != len(names):
        raise BenchError("mini-ImageNet's splits share a class: take the three files from one and the same source")
    return RawImages(
        images=np.stack(images),
        class_names=tuple(names),
        splits=tuple(splits),
        versions={"pillow": PIL.__version__},
    )


def _read_cache(path: Path, examples: int) -> dict[str, np.ndarray]:
    content = read_pickle(path, str(path))
    try:
        pixels = np.asarray(content["image_data"])
        rows = {str(name): np.asarray(indices, dtype=np.int64) for name, indices in content["class_dict"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"no image_data and class_dict: {error}") from error
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (SIZE, SIZE, 3):
        raise _damaged(path, f"image_data is {pixels.dtype} {pixels.shape}, not uint8 [n, {SIZE}, {SIZE}, 3]")
    for name, indices in rows.items():
        if indices.shape != (examples,) or indices.min() < 0 or indices.max() >= len(pixels):
            raise _damaged(path, f"class {name} has not {examples} images")
    return {name: pixels[indices] for name, indices in rows.items()}


def _read_folder(path: Path, classes: int, examples: int, progress: Progress | None) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
        if len(files) != examples:
            raise _damaged(folder, f"it has {len(files)} images, not {examples}")
        found[folder.name] = np.stack([_decode(file) for file in files])
        if progress:
            progress(f"reading mini-ImageNet's {path.name} classes", len(found), classes)
    return found


def _decode(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS))
    except (UnidentifiedImageError, EOFError, OSError, ValueError, SyntaxError) as error:
        raise _damaged(path, str(error)) from error


def _missing(pickle_name: str, folder_name: str, local: Path | None) -> BenchError:
    place = f"{local / SUBFOLDER}" if local else f"FOLDER/{SUBFOLDER} with data.local_dir (or {ENVIRONMENT}) = FOLDER"
    return BenchError(
        f"{pickle_name} is missing, and is not fetched, since ImageNet's terms ask for consent: agree to "
        f"them at https://image-net.org, get the three mini-imagenet-cache files of the Ravi and "
        f"Larochelle split (for instance https://zenodo.org/record/7978538) and put them, or a folder "
        f"{folder_name} of one folder per class, in {place}"
    )


def _damaged(path: Path, what: str) -> BenchError:
    return BenchError(
        f"{path} is damaged or not mini-ImageNet's ({what}): delete it and put an undamaged copy in its place"
    )
