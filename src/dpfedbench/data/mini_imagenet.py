"""mini-ImageNet: 100 ImageNet classes × 600 images (Vinyals et al. 2016).

The split is that of Ravi and Larochelle (2017).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL

from dpfedbench.data.images import RawImages
from dpfedbench.data.sources import Copy, Source, by_class, read_pickle
from dpfedbench.errors import BenchError

EXAMPLES = 600
SIZE = 84
_SPELLINGS = {
    "train": ("train",),
    "validation": ("val", "validation"),
    "test": ("test",),
}

_SPLIT_TEXT = {
    "train": (
        """
        n01532829 n01558993 n01704323 n01749939 n01770081 n01843383 n01910747 n02074367 n02089867 n02091831
        n02101006 n02105505 n02108089 n02108551 n02108915 n02111277 n02113712 n02120079 n02165456 n02457408
        n02606052 n02687172 n02747177 n02795169 n02823428 n02966193 n03017168 n03047690 n03062245 n03207743
        n03220513 n03337140 n03347037 n03400231 n03476684 n03527444 n03676483 n03838899 n03854065 n03888605
        n03908618 n03924679 n03998194 n04067472 n04243546 n04251144 n04258138 n04275548 n04296562 n04389033
        n04435653 n04443257 n04509417 n04515003 n04596742 n04604644 n04612504 n06794110 n07584110 n07697537
        n07747607 n09246464 n13054560 n13133613
    """
    ),
    "validation": (
        """
        n01855672 n02091244 n02114548 n02138441 n02174001 n02950826 n02971356 n02981792 n03075370 n03417042
        n03535780 n03584254 n03770439 n03773504 n03980874 n09256479
    """
    ),
    "test": (
        """
        n01930112 n01981276 n02099601 n02110063 n02110341 n02116738 n02129165 n02219486 n02443484 n02871525
        n03127925 n03146219 n03272010 n03544143 n03775546 n04146614 n04149813 n04418357 n04522168 n07613480
    """
    ),
}
SPLIT_CLASSES = {split: text.split() for split, text in _SPLIT_TEXT.items()}
"""Ravi and Larochelle's split into 64, 16 and 20 classes, by WordNet id."""


def _parts() -> dict[str, tuple[str, ...]]:
    """Return the possible names of each split: a pickle, a folder, or class folders."""
    parts = {}
    for split, spellings in _SPELLINGS.items():
        pickles = [f"mini-imagenet-cache-{spelling}.pkl" for spelling in spellings]
        parts[split] = (*pickles, *spellings, *SPLIT_CLASSES[split])
    return parts


_SOURCE = Source(
    name="mini-ImageNet",
    folders=("mini-imagenet", "miniimagenet"),
    parts=_parts(),
    check="100 classes by WordNet id, 600 images each",
    downloaded=False,
)
PLACES = {"mini-imagenet": _SOURCE}


def read_mini_imagenet(
    local: Path | None,
    download_dir: Path,
) -> RawImages:
    """Read mini-ImageNet, 84×84 colour, from a local folder.

    Args:
        local: local data folder. It, or its subfolder `mini-imagenet/`, holds the usual
            `mini-imagenet-cache-{train,val,test}.pkl` (dicts of `image_data`, uint8 [n,
            84, 84, 3], and `class_dict`, WordNet id to rows), or one folder of classes
            per split, `{train,val,test}/WNID/*.jpg`, or all classes side by side in
            `mini-imagenet/`. Images from folders are resized with Lanczos's filter.
            Nothing is downloaded, because ImageNet's terms require consent.

    Raises:
        BenchError: there is no copy, or the copy is damaged or incomplete.
    """
    images = []
    names = list[str]()
    splits = list[str]()
    copies = _find(local)
    for split, classes in SPLIT_CLASSES.items():
        copy = copies[split]
        class_names = sorted(classes)
        if copy.path.is_dir():
            images.append(_read_folder(copy, class_names))
        else:
            images.append(_read_cache(copy, class_names))
        names += class_names
        splits += [split] * len(class_names)
    return RawImages(
        images=np.concatenate(images),
        class_names=tuple(names),
        splits=tuple(splits),
        versions={"pillow": PIL.__version__},
    )


def _find(local: Path | None) -> dict[str, Copy]:
    """Return each split's pickle or folder, or the folder of all classes."""
    copies = _SOURCE.find(local)
    if not copies:
        raise BenchError(
            "mini-imagenet-cache-train.pkl is missing, and is not downloaded"
            " automatically, since ImageNet's terms ask for consent: agree to them at"
            " https://image-net.org, get the three mini-imagenet-cache files of the Ravi"
            " and Larochelle split (for instance https://zenodo.org/record/7978538) and"
            " put them, or the folders train, val and test of one folder per class (or"
            f" the 100 folders side by side), in {_SOURCE.place}"
        )
    for split, copy in copies.items():
        if copy.path.name in SPLIT_CLASSES[split]:
            copies[split] = Copy(_SOURCE, copy.path.parent)
    return copies


def _read_cache(copy: Copy, wanted: Sequence[str]) -> np.ndarray:
    """Read the classes of a split's pickle, uint8 [classes, examples, 84, 84, 3]."""
    with copy.judged():
        content = read_pickle(copy.path)
        pixels = np.asarray(content["image_data"])
        class_rows = content["class_dict"]
        counts = {name: len(class_rows.get(name, ())) for name in wanted}
        copy.check_counts(counts, EXAMPLES)
        images = pixels[np.array([class_rows[name] for name in wanted])]
    if images.dtype != np.uint8 or images.shape[2:] != (SIZE, SIZE, 3):
        raise copy.damaged(
            f"image_data is {pixels.dtype} {pixels.shape}, not uint8 [n, {SIZE},"
            f" {SIZE}, 3]"
        )
    return images


def _read_folder(copy: Copy, wanted: Sequence[str]) -> np.ndarray:
    """Read the classes of a folder, uint8 [classes, examples, 84, 84, 3].

    The folder holds one split or all classes.
    """
    pictures = by_class(sorted(copy.files), r"(?i)^([^/]+)/[^/]+\.(?:jpe?g|png)$")
    classes = {name: pictures.get(name, []) for name in wanted}
    return copy.pictures(classes, examples=EXAMPLES, mode="RGB", side=SIZE)


READERS = {"mini-imagenet": read_mini_imagenet}
