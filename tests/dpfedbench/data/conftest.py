"""Small data sets for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.data.images import ImageDataset, RawImages, load_dataset


def _raw_images(
    train: int,
    validation: int,
    test: int,
    examples: int,
    size: int = 4,
    channels: int = 1,
) -> RawImages:
    """Images whose pixels say which class and example they are: value (class * 7 +
    example) % 256.
    """
    classes = train + validation + test
    value = (np.arange(classes)[:, None] * 7 + np.arange(examples)) % 256
    images = np.broadcast_to(
        value[:, :, None, None, None], (classes, examples, size, size, channels)
    )
    # Splits interleave, so that a class index is never a position within a split.
    splits = np.array(["train"] * train + ["validation"] * validation + ["test"] * test)
    splits = splits[np.random.default_rng(0).permutation(classes)]
    return RawImages(
        images=images.astype(np.uint8),
        class_names=tuple(f"class {index}" for index in range(classes)),
        splits=tuple(str(split) for split in splits),
        versions={},
    )


@pytest.fixture
def raw_images() -> Callable[..., RawImages]:
    """Makes small sets of images: (train, validation, test classes, examples per
    class).
    """
    return _raw_images


@pytest.fixture
def small(tmp_path: Path) -> ImageDataset:
    """24 training, 6 validation and 10 test classes of 12 images."""
    _raw_images(24, 6, 10, 12).save(tmp_path / "small", {"name": "small"})
    return load_dataset(tmp_path / "small")
