"""Write small random stand-ins for the data that the checked examples read.

    python stand_in_data.py FOLDER

MNIST and CIFAR-10 as torchvision's files, and names as text. torchvision compares
CIFAR-10's files with the digests of the real ones: the folder `stub` has a
`sitecustomize` that takes any file; put it on PYTHONPATH.
"""

import pickle
import struct
import sys
from pathlib import Path

import numpy as np

STUB = """import torchvision.datasets.cifar

torchvision.datasets.cifar.check_integrity = lambda *args, **kwargs: True
"""


def main(folder: str) -> None:
    """Write the stand-ins into a folder."""
    root = Path(folder)
    generator = np.random.default_rng(0)
    for part, count in (("train", 200), ("t10k", 64)):
        images = generator.integers(0, 256, (count, 28, 28))
        _write_idx(root / f"MNIST/raw/{part}-images-idx3-ubyte", images)
        _write_idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte", np.arange(count) % 10)
    cifar = root / "cifar-10-batches-py"
    cifar.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = generator.integers(0, 256, (20, 3072), dtype=np.uint8)
        labels = [number % 10 for number in range(20)]
        content = pickle.dumps({"data": pixels, "labels": labels})
        (cifar / name).write_bytes(content)
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (cifar / "batches.meta").write_bytes(meta)
    names = root / "names"
    names.mkdir(exist_ok=True)
    for language, letters in (("English", "abcdefg"), ("Greek", "opqrst")):
        words = ["".join(generator.choice(list(letters), 5)) for _ in range(50)]
        (names / f"{language}.txt").write_text("\n".join(words) + "\n")
    stub = root / "stub"
    stub.mkdir(exist_ok=True)
    (stub / "sitecustomize.py").write_text(STUB)


def _write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">HBB", 0, 8, values.ndim)
    shape = struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + shape + values.astype(np.uint8).tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
