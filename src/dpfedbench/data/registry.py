"""The data sets by name: what each is, where it comes from, and how it is prepared.

Those that come with dpfedbench stand here. Others are stated in the configuration (`datasets`): what they are, and the
module of this package whose `read` makes them.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dpfedbench import data
from dpfedbench.data.cifar_fs import read_cifar_fs
from dpfedbench.data.digits import read_digits
from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.glyph_scenes import read as read_glyph_scenes
from dpfedbench.data.glyphs import read_glyphs
from dpfedbench.data.images import Progress, save_dataset
from dpfedbench.data.mini_imagenet import read_mini_imagenet
from dpfedbench.data.mnist import read_fashion_mnist, read_mnist
from dpfedbench.data.omniglot import read_omniglot
from dpfedbench.data.records import RawRecords, save_records
from dpfedbench.data.sources import local_folder
from dpfedbench.data.tiny_imagenet import read_tiny_imagenet, read_tiny_imagenet_100
from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Settings

_ENTRIES = (
    DatasetEntry(
        name="glyphs",
        version="1",
        holds="classes 1150/50/423 x 20 of 28x28x1",
        source="drawn by dpfedbench from matplotlib's DejaVu fonts",
        licence="Bitstream Vera and Arev font licences (fonts); MIT (drawings)",
        read=read_glyphs,
        stands_in_for="omniglot",
        recorded_sha256="eb553dbdb038f58e89c3c1f895cebef5387036518eac58020bcd54d4a4699c9a",
    ),
    DatasetEntry(
        name="omniglot",
        version="1",
        holds="classes 1150/50/423 x 20 of 28x28x1",
        source="https://github.com/brendenlake/omniglot",
        licence="MIT",
        read=read_omniglot,
        recorded_sha256="910224a05d7f301fbb9fa895855b3a938b8eb033955546561619f310416718ab",
    ),
    DatasetEntry(
        name="cifar-fs",
        version="1",
        holds="classes 64/16/20 x 600 of 32x32x3",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky 2009 and Bertinetto et al. 2019",
        read=read_cifar_fs,
    ),
    DatasetEntry(
        name="mini-imagenet",
        version="1",
        holds="classes 64/16/20 x 600 of 84x84x3",
        source="https://image-net.org",
        licence="ImageNet terms of access: non-commercial research",
        read=read_mini_imagenet,
    ),
    DatasetEntry(
        name="glyph-scenes-32",
        version="2",
        holds="classes 64/16/20 x 600 of 32x32x3",
        source="drawn by dpfedbench from matplotlib's DejaVu fonts",
        licence="Bitstream Vera and Arev font licences (fonts); MIT (drawings)",
        read=partial(read_glyph_scenes, size=32, images_per_class=600),
        stands_in_for="cifar-fs",
        recorded_sha256="651f49ee1549b65b9a54fae9700ff56d5c00f36c160307047f5165eabd724876",
    ),
    DatasetEntry(
        name="glyph-scenes-84",
        version="2",
        holds="classes 64/16/20 x 200 of 84x84x3",
        # 600 would be 1.3 GB, read whole to check it before each run.
        source="drawn by dpfedbench from matplotlib's DejaVu fonts; 200 images a class where mini-ImageNet has 600",
        licence="Bitstream Vera and Arev font licences (fonts); MIT (drawings)",
        read=partial(read_glyph_scenes, size=84, images_per_class=200),
        stands_in_for="mini-imagenet",
        recorded_sha256="66bfa47666d60cacd830891bfb26fb8e7684bd077bfa663293731c3ed095a546",
    ),
    DatasetEntry(
        name="tiny-imagenet",
        version="1",
        holds="classes 128/32/40 x 550 of 64x64x3",
        source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        licence="ImageNet terms of access: non-commercial research",
        read=read_tiny_imagenet,
    ),
    DatasetEntry(
        name="tiny-imagenet-100",
        version="1",
        holds="classes 64/16/20 x 200 of 64x64x3",
        source="100 classes x 200 training images of http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        licence="ImageNet terms of access: non-commercial research",
        read=read_tiny_imagenet_100,
        recorded_sha256="fe6fe7ae62013ff4f5e72ab71c0267190a5d06ffd316a141c1c5d7c015dec7dd",
    ),
    DatasetEntry(
        name="tiny-imagenet-100-32",
        version="1",
        holds="classes 64/16/20 x 200 of 32x32x3",
        source="tiny-imagenet-100, resized to 32x32",
        licence="ImageNet terms of access: non-commercial research",
        read=partial(read_tiny_imagenet_100, size=32),
        recorded_sha256="fcd1cafceaab62678b8016354c59d83ca4fc2ac55d40631f57cc059d6ecf1d6b",
    ),
    DatasetEntry(
        name="digits",
        version="1",
        holds="records 60000/10000 of 28x28x1",
        source="drawn by dpfedbench from matplotlib's DejaVu fonts",
        licence="Bitstream Vera and Arev font licences (fonts); MIT (drawings)",
        read=read_digits,
        stands_in_for="fashion-mnist",
        recorded_sha256="6908f96b8597f1e10d20de6946ff07c41df1ccb19f47bba3b3fbd06da73fc815",
    ),
    DatasetEntry(
        name="mnist",
        version="1",
        holds="records 60000/10000 of 28x28x1",
        source="http://yann.lecun.com/exdb/mnist/",
        licence="none stated; cite LeCun et al. 1998",
        read=read_mnist,
    ),
    DatasetEntry(
        name="fashion-mnist",
        version="1",
        holds="records 60000/10000 of 28x28x1",
        source="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        read=read_fashion_mnist,
        recorded_sha256="90d92e1ec361156ea1ee20b1805aa32747a53165c0c76864b4e63764ec91c4be",
    ),
)


def _found() -> Iterator[DatasetEntry]:
    """The entries above, and those (`ENTRIES`) of the modules of this package that have some, by place."""
    yield from _ENTRIES
    for info in sorted(pkgutil.iter_modules(data.__path__), key=lambda info: info.name):
        if f"{data.__name__}.{info.name}" != __name__:
            yield from getattr(importlib.import_module(f"{data.__name__}.{info.name}"), "ENTRIES", ())


DATASETS = {entry.name: entry for entry in _found()}


def lookup(name: str, own: Mapping[str, Mapping[str, Any] | None] | None = None) -> DatasetEntry:
    """The entry of a data set.

    Args:
        name: of the data set.
        own: the configuration's `datasets`.

    Raises:
        BenchError: there is none of this name; says which is nearest. Or its reader is missing or refuses its options.
    """
    if name in DATASETS:
        return DATASETS[name]
    stated = {own_name: values for own_name, values in (own or {}).items() if values is not None}
    if name in stated:
        return _stated(name, stated[name])
    names = [*DATASETS, *stated]
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise BenchError(f"there is no data set {name!r}: {hint}choose one of {', '.join(names)}")


def _stated(name: str, values: Mapping[str, Any]) -> DatasetEntry:
    """The entry of a data set that the configuration states."""
    module, options = f"{__package__}.{values['reader'].replace('-', '_')}", values.get("options") or {}
    try:
        reader = importlib.import_module(module)
        read, known = reader.read, getattr(reader, "Options", None)
        if isinstance(known, type) and issubclass(known, Settings):
            known.read(options, f"datasets.{name}.options")
        inspect.signature(read).bind(None, Path(), None, **options)
    except (ModuleNotFoundError, AttributeError) as error:
        raise BenchError(f"datasets.{name}.reader is {values['reader']}, but {module} has no read ({error})") from error
    except TypeError as error:
        raise BenchError(f"datasets.{name}.options do not fit the reader {values['reader']}: {error}") from error
    return DatasetEntry(
        name=name,
        version=str(values.get("version", 1)),
        source=values.get("source", "not stated"),
        licence=values.get("licence", "not stated"),
        read=partial(read, **options),
    )


def prepare(
    name: str,
    out_dir: Path | str,
    local_dir: Path | str | None = None,
    progress: Progress | None = None,
    *,
    own: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> None:
    """Make images.npy, classes.csv and summary.json of a data set in `out_dir`; nothing is left half-written.

    Args:
        name: of the data set.
        out_dir: the data set's folder; downloads are kept in its subfolder `download`.
        local_dir: a folder with real data already here; None means the environment variable DPFEDBENCH_DATA,
            and where that is not set either, download.
        progress: told what is being done, and how far it is.
        own: data sets besides those that come with dpfedbench: the configuration's `datasets`.

    Raises:
        BenchError: unknown name, no data and no network, damaged data, or nowhere to write.
    """
    entry, out_dir = lookup(name, own), Path(out_dir)
    raw = entry.read(local_folder(local_dir), out_dir / "download", progress)
    facts = {
        "name": entry.name,
        "version": entry.version,
        "source": entry.source,
        "licence": entry.licence,
        "stand_in": entry.stand_in,
        "stands_in_for": entry.stands_in_for,
        "recorded_sha256": entry.recorded_sha256,
    }
    if hasattr(raw, "save"):
        raw.save(out_dir, facts)
    elif isinstance(raw, RawRecords):
        save_records(out_dir, raw, facts)
    else:
        save_dataset(out_dir, raw, facts)
