"""Small data sets with clients, written to a folder. The fixtures `federation` and
`silos` of tests/conftest.py have them.
"""

from pathlib import Path

import numpy as np

from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.records import RawRecords, load_records
from tests.partitions import make_fragments, make_partition


def noisy_images(patterns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images of patterns of zeros and ones, with noise of deviation 0.3."""
    noisy = patterns + 0.3 * rng.normal(size=patterns.shape)
    return (255 * np.clip(noisy, 0, 1)).astype(np.uint8)


def draw_glyphs(
    rng: np.random.Generator,
    shape: tuple[int, int, int] = (16, 16, 1),
    train: int = 6,
    held_out: int = 3,
) -> RawImages:
    """Draw classes of ten images, as many for validation as for tests."""
    classes = train + 2 * held_out
    patterns = rng.random((classes, 1, *shape)) > 0.6
    return RawImages(
        images=noisy_images(np.repeat(patterns, 10, axis=1), rng),
        class_names=tuple(f"class{i}" for i in range(classes)),
        splits=("train",) * train + ("validation",) * held_out + ("test",) * held_out,
        versions={},
    )


def draw_digits(rng: np.random.Generator, train: int, test: int) -> RawRecords:
    """Draw ten patterns with some training and test records of each."""
    patterns = rng.random((10, 28, 28, 1)) > 0.6
    train_labels = np.repeat(np.arange(10), train)
    test_labels = np.repeat(np.arange(10), test)
    return RawRecords(
        train_images=noisy_images(patterns[train_labels], rng),
        train_labels=train_labels.astype(np.int64),
        test_images=noisy_images(patterns[test_labels], rng),
        test_labels=test_labels.astype(np.int64),
        class_names=tuple(f"pattern{i}" for i in range(10)),
        versions={},
    )


def save_federation(root: Path) -> tuple[Path, Path]:
    """Save images of `glyphs` and 48 few-shot clients.

    Returns the data folder and the clients folder.
    """
    draw_glyphs(np.random.default_rng(0)).save(root / "data", {"name": "glyphs"})
    clients = make_partition(
        load_dataset(root / "data"),
        clients=48,
        ways=3,
        examples_per_class=4,
        kind="shared",
        seed=0,
    )
    clients.save(root / "clients")
    return root / "data", root / "clients"


def save_silos(root: Path) -> tuple[Path, Path]:
    """Save 400 training and 100 test records of `digits`, and four clients.

    Returns the data folder and the clients folder.
    """
    digits = draw_digits(np.random.default_rng(0), train=40, test=10)
    digits.save(root / "data", {"name": "digits"})
    records = load_records(root / "data")
    partition = make_fragments(records, clients=4, fragments=20, seed=0)
    partition.save(root / "clients")
    return root / "data", root / "clients"
