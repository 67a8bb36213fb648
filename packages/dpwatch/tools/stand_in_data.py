"""Write small random stand-ins for the data that the checked examples read.

    python stand_in_data.py FOLDER [CIFAR_IMAGES]

MNIST and CIFAR-10 as torchvision's files (CIFAR_IMAGES in each of CIFAR-10's six), names
as text and as the archive of the tutorial, CIFAR-10 as pfl's benchmark reads it, reviews
as `imdb/` and a tokenizer as `bert-base-cased/`, which libraries of Hugging Face read
from the working folder.

The folder `stub` has a `sitecustomize`; put it on PYTHONPATH. It takes any file for one
of CIFAR-10, where torchvision compares digests, and copies `names.zip` where the tutorial
downloads its archive. With STAND_IN_SEED it seeds torch, so that two runs can be compared.
"""

import json
import pickle
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

STUB = """import os
import urllib.request
from pathlib import Path


def copy_names(url, filename):
    Path(filename).write_bytes(Path(__file__).parents[1].joinpath("names.zip").read_bytes())


urllib.request.urlretrieve = copy_names
try:
    import torchvision.datasets.cifar

    torchvision.datasets.cifar.check_integrity = lambda *args, **kwargs: True
except ImportError:
    pass
if "STAND_IN_SEED" in os.environ:
    import torch

    torch.manual_seed(int(os.environ["STAND_IN_SEED"]))
"""
LANGUAGES = (("English", "abcdefg"), ("Greek", "opqrst"))


def main(folder: str, cifar_images: str = "20") -> None:
    """Write the stand-ins into a folder."""
    root = Path(folder)
    generator = np.random.default_rng(0)
    for part, count in (("train", 200), ("t10k", 64)):
        images = generator.integers(0, 256, (count, 28, 28))
        _write_idx(root / f"MNIST/raw/{part}-images-idx3-ubyte", images)
        _write_idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte", np.arange(count) % 10)
    _write_cifar(root, generator, int(cifar_images))
    _write_names(root / "names", generator, 50)
    _write_names(root / "archive/data/names", generator, 500)
    shutil.make_archive(str(root / "names"), "zip", root / "archive")
    _write_pfl_cifar(root / "pfl", generator)
    _write_reviews(root / "imdb", generator)
    _write_tokenizer(root / "bert-base-cased")
    stub = root / "stub"
    stub.mkdir(exist_ok=True)
    (stub / "sitecustomize.py").write_text(STUB)


def _write_cifar(root: Path, generator: np.random.Generator, count: int) -> None:
    cifar = root / "cifar-10-batches-py"
    cifar.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = [number % 10 for number in range(count)]
        content = pickle.dumps({"data": pixels, "labels": labels})
        (cifar / name).write_bytes(content)
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (cifar / "batches.meta").write_bytes(meta)


def _write_names(folder: Path, generator: np.random.Generator, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for language, letters in LANGUAGES:
        words = ["".join(generator.choice(list(letters), 5)) for _ in range(count)]
        (folder / f"{language}.txt").write_text("\n".join(words) + "\n")


def _write_pfl_cifar(folder: Path, generator: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 1000), ("test", 200)):
        pixels = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        labels = (np.arange(count) % 10).reshape(-1, 1)
        content = pickle.dumps((pixels, labels))
        (folder / f"cifar10_{part}.p").write_bytes(content)


def _write_reviews(folder: Path, generator: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 160), ("test", 32)):
        rows = [
            f"{' '.join(generator.choice(['good', 'bad', 'film'], 8))},{number % 2}"
            for number in range(count)
        ]
        (folder / f"{part}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")


def _write_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    config = {"model_type": "bert", "vocab_size": len(words)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))


def _write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">HBB", 0, 8, values.ndim)
    shape = struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + shape + values.astype(np.uint8).tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
