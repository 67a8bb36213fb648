"""A small federation on disk: a synthetic data set, its clients and run configurations."""

import numpy as np
import pytest

from dpfedbench.config import RunConfig, merge
from dpfedbench.data.fragments import make_fragments
from dpfedbench.data.images import RawImages, load_dataset, save_dataset
from dpfedbench.data.partition import make_partition
from dpfedbench.data.records import RawRecords, load_records, save_records

RUN = {
    "method": "dp-agr",
    "seed": 0,
    "dataset": "glyphs",
    "task": {"ways": 3, "shots": 1},
    "clients": {
        "count": 48,
        "examples_per_class": 4,
        "support_per_class": 1,
        "query_per_class": 2,
        "partition": "shared",
        "fragments": None,
    },
    "model": {"name": "conv4", "filters": 4, "normalisation": "batch", "pixel_mean": 0.0, "pixel_deviation": 1.0},
    "participation": {"kind": "one-pass", "cohort": 4, "rounds": 12},
    "client_update": {
        "kind": "maml",
        "inner_steps": 1,
        "inner_rate": 0.1,
        "order": 2,
        "optimizer": "sgd",
        "keep_state": True,
        "learnable_rates": False,
        "multi_step_rounds": 0,
    },
    "local": None,
    "clipping": {
        "rule": "percentile-of-releases",
        "threshold": 0.5,
        "percentile": 90,
        "window": 3,
        "form": "mean",
        "never_rising": False,
        "factor": 1.0,
        "quantile_rate": 0.2,
        "count_noise": None,
    },
    "noise": {"multiplier": 1.0, "decay": 1.0, "falls": 3},
    "budget": {"epsilon": None, "delta": 1e-3, "profile": "holds", "stop": True},
    "server": {"optimizer": "adam", "rate": 0.01, "momentum": 0.0, "schedule": "constant", "final_rate": None},
    "validation": {"every": 4, "tasks": 4, "ensemble": 2, "public": True},
    "evaluation": {"every": 0, "tasks": 6, "query_per_class": 3, "steps": 2, "rate": 0.1},
}
PLAIN = {"method": "maml", "clipping": None, "noise": None, "budget": None}


def make_config(*overlays):
    """A run of the small federation with some values changed."""
    return RunConfig.from_dict(merge(RUN, *overlays))


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """(data folder, clients folder) of 12 classes of noisy 16x16 patterns and 48 clients."""
    root = tmp_path_factory.mktemp("federation")
    rng = np.random.default_rng(0)
    patterns = rng.random((12, 1, 16, 16, 1)) > 0.6
    images = (255 * np.clip(patterns + 0.3 * rng.normal(size=(12, 10, 16, 16, 1)), 0, 1)).astype(np.uint8)
    raw = RawImages(
        images=images,
        class_names=tuple(f"class{i}" for i in range(12)),
        splits=("train",) * 6 + ("validation",) * 3 + ("test",) * 3,
        versions={},
    )
    save_dataset(root / "data", raw, {"name": "glyphs"})
    clients = make_partition(
        load_dataset(root / "data"), clients=48, ways=3, examples_per_class=4, kind="shared", seed=0
    )
    clients.save(root / "clients")
    return root / "data", root / "clients"


@pytest.fixture(scope="session")
def silos(tmp_path_factory):
    """(data folder, clients folder): 400 training records of ten noisy patterns, 100 test records, four clients."""
    root = tmp_path_factory.mktemp("silos")
    rng = np.random.default_rng(0)
    patterns = rng.random((10, 28, 28, 1)) > 0.6

    def draw(count):
        labels = np.repeat(np.arange(10), count)
        noisy = patterns[labels] + 0.3 * rng.normal(size=(len(labels), 28, 28, 1))
        return (255 * np.clip(noisy, 0, 1)).astype(np.uint8), labels.astype(np.int64)

    train_images, train_labels = draw(40)
    test_images, test_labels = draw(10)
    raw = RawRecords(
        train_images=train_images, train_labels=train_labels, test_images=test_images, test_labels=test_labels,
        class_names=tuple(f"pattern{i}" for i in range(10)), versions={},
    )  # fmt: skip
    save_records(root / "data", raw, {"name": "digits"})
    make_fragments(load_records(root / "data"), clients=4, fragments=20, seed=0).save(root / "clients")
    return root / "data", root / "clients"
