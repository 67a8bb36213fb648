"""A user's own code outside dpfedbench: methods, parts, networks and readers of data.

A user's folder has sub-folders with the names of this package's folders, and the user's
modules in them: `methods/`, `parts/clipping/`, `data/`, `models/zoo/`; and of dpsum,
`accounting/analyses/`. They are modules of the package of that place,
`dpfedbench.parts.clipping.geometric` for instance. So they are found, imported and
named as if they lay there, and a file may move between a folder, a wheel and the
repository without an edit. There are two kinds of such folders:

* the one that the configuration names (`code_folder`), which jobs know by the
  environment variable `DPFEDBENCH_CODE`;
* packages that are installed, named in the entry-point group `dpfedbench` of their
  distribution.
"""

import functools
import importlib.metadata
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from dpfedbench.errors import BenchError

CODE = "DPFEDBENCH_CODE"
"""The environment variable that names the folder of one's own code."""
GROUP = "dpfedbench"
"""The group of entry points by which an installed package says that it is such a
folder.
"""

PACKAGE, LIBRARY = Path(__file__).resolve().parent, "dpsum"
PLACES = (
    "methods",
    *(
        f"parts/{name}"
        for name in (
            "client_updates",
            "clipping",
            "factorisations",
            "noise",
            "optimizers",
        )
    ),
    *(
        f"parts/{name}"
        for name in ("participation", "partitions", "schedules", "server", "transforms")
    ),
    *(f"models/{name}" for name in ("features", "genotypes", "initial", "zoo")),
    "data",
    "settings/vocabularies",
    "audit/attacks",
    "accounting/analyses",
)
"""Folders of dpfedbench, and the last one of dpsum, whose modules are found by
place.
"""


def package_of(inside: Path) -> str:
    """Whether a module of one's own is one of dpfedbench or of dpsum, by its path below
    a folder of one's own.
    """
    return LIBRARY if inside.parts[0] == "accounting" else PACKAGE.name


def use(folder: Any) -> None:
    """Have this process, and those that it starts, find the code in a folder; for
    notebooks: `dpfedbench.use_code`.

    Args:
        folder: seen from the working directory; None: that of the environment variable
            stays, if there is one.

    Raises:
        BenchError: there is no such folder, nothing in it is looked for, or the methods
            were read before.
    """
    if folder is None:
        folder = os.environ.get(CODE) or None
    if folder is None:
        return
    if not isinstance(folder, str | Path):
        raise BenchError(f"code_folder is {folder!r}: expected the path of a folder")
    place = Path(folder).absolute()
    if "dpfedbench.methods" in sys.modules and place not in folders():
        raise BenchError(
            f"{place} comes too late: name it before anything else of dpfedbench is"
            " used"
        )
    os.environ[CODE] = str(place)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in (PACKAGE.name, LIBRARY) and hasattr(
            module, "__path__"
        ):
            extend(module)


def extend(module: ModuleType) -> None:
    """Have a package of dpfedbench or dpsum look for its modules in folders of one's
    own too.
    """
    module.__path__.extend(
        place for place in _places(module.__name__) if place not in module.__path__
    )


class _Beside:
    """Finds packages of dpfedbench as they would be found without it, and adds the
    folders of one's own to each.
    """

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if not name.startswith((f"{PACKAGE.name}.", f"{LIBRARY}.")):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.extend(_places(name))
        return spec


def install() -> None:
    """Have the packages of dpfedbench that are imported from here on find code of one's
    own.
    """
    if not any(isinstance(finder, _Beside) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Beside())  # type: ignore[arg-type]


def _places(package: str) -> list[str]:
    """The folders of one's own that belong to a package of dpfedbench or dpsum, in the
    order of `folders`.
    """
    first, *inside = package.split(".")
    if first != package_of(Path(*inside, "module.py")):
        return []
    return [
        str(place)
        for folder in folders()
        if (place := folder.joinpath(*inside)).is_dir()
    ]


def folders() -> dict[Path, str]:
    """The folders of one's own code there are; of installed ones, the package's name,
    and of a bare folder "".
    """
    named = os.environ.get(CODE)
    return ({Path(named).absolute(): ""} if named else {}) | {
        place: name for name, place in _installed() if place
    }


@functools.cache
def _installed() -> tuple[tuple[str, Path | None], ...]:
    """The packages that distributions name, by name, and where each is; None where
    there is no such package.
    """
    folders: dict[str, Path | None] = {}
    for point in sorted(
        importlib.metadata.entry_points(group=GROUP), key=lambda point: point.value
    ):
        try:
            spec = importlib.util.find_spec(point.value)
        except (ImportError, ValueError):
            spec = None
        inside = list(spec.submodule_search_locations or ()) if spec else []
        folders[point.value] = Path(inside[0]).absolute() if inside else None
    return tuple(folders.items())


def packages() -> list[str]:
    """The packages of dpfedbench that have modules of one's own, by name, in the order
    of `PLACES`.
    """
    return [
        f"{package_of(Path(place))}.{place.replace('/', '.')}"
        for place in PLACES
        if any(any((folder / place).glob("*.py")) for folder in folders())
    ]


def check() -> None:
    """Refuse folders of one's own in which something would be overlooked.

    Raises:
        BenchError: a folder or package is not there, it has nothing at a place that is
            looked into, or a module in it has the name of another one.
    """
    for name, place in _installed():
        if place is None:
            raise BenchError(
                f"an installed package names {name} in its entry points for dpfedbench,"
                f" but there is no package {name}: mend its pyproject.toml and install"
                " it again, or uninstall it"
            )
    there: dict[str, Path] = {}
    for folder, package in folders().items():
        if not folder.is_dir():
            raise BenchError(
                f"code_folder is {folder}, but there is no such folder: correct it, or"
                " make the folder"
            )
        modules = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*.py"))
        }
        own = {
            name: path
            for name, path in modules.items()
            if name.rpartition("/")[0] in PLACES
        }
        for name, path in modules.items():
            inside, _, file = name.rpartition("/")
            meant = (
                [
                    place
                    for place in PLACES
                    if place != inside and place.endswith(f"/{inside}")
                ]
                if inside
                else []
            )
            if meant:
                raise BenchError(
                    f"{path} is not looked for there: move it to"
                    f" {folder / meant[0] / file}"
                )
        for name, path in own.items():
            if path.name == "__init__.py":
                continue
            if (PACKAGE.with_name(package_of(Path(name))) / name).exists():
                raise BenchError(
                    f"{path} has the name of a file that dpfedbench comes with: give it"
                    " another"
                )
            if name in there:
                raise BenchError(
                    f"{path} has the name of {there[name]}: give one of them another"
                )
            there[name] = path
        if not own:
            whose = (
                f"the package {package}, whose folder is {folder},"
                if package
                else str(folder)
            )
            raise BenchError(
                f"{whose} has no module in a folder where own code is found:"
                f" {', '.join(PLACES)}"
            )


def check_names() -> None:
    """Refuse modules that were imported twice: by their place in dpfedbench, and by
    their package's own name.

    Raises:
        BenchError: says which, and how to import it.
    """
    for package in filter(None, folders().values()):
        for name, module in list(sys.modules.items()):
            inside = name.removeprefix(f"{package}.")
            if (
                inside == name
                or inside.rpartition(".")[0].replace(".", "/") not in PLACES
            ):
                continue
            raise BenchError(
                f"{module.__file__} is imported as {name}, and would be there twice:"
                f" write from {package_of(Path(*inside.split('.')))}.{inside}"
                " import ..."
            )
