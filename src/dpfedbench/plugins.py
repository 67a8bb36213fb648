"""Import plugins: modules outside dpfedbench that add methods, parts, models, readers
of data, attacks or accountants.

A plugin is a module or package that Python can import, from the working folder or from
the installed packages. A class in it is found because it extends a class of dpfedbench
or dpsum. There are two ways to name a plugin:

* the configuration lists it under `plugins`; jobs read the list from the environment
  variable `DPFEDBENCH_PLUGINS`, where names are separated by commas;
* a package names it in the entry-point group `dpfedbench.plugins`: an installed
  package, or a project in the folder `packages` of a checkout, installed or not.

A plugin that is a package may have a folder `config`, with experiments and with
overlays for presets (`experiments.configuration.shipped_files`).

An error that a plugin raises while it is imported is not caught here, so that its
traceback shows the file and the line.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dpfedbench.errors import BenchError

VARIABLE = "DPFEDBENCH_PLUGINS"
"""Environment variable with the names of the plugins; "no" switches all plugins off,
installed ones too.
"""
GROUP = "dpfedbench.plugins"
"""Entry-point group in which packages name their plugins."""
CHECKOUT = Path(__file__).resolve().parents[2]
"""Folder of the repository, where dpfedbench is imported from a checkout."""
PACKAGES = (
    "dpfedbench",
    "dpkernels",
    "dploss",
    "dpsum",
    "dpwatch",
    "drawnsets",
    "workflow_jobs",
)
"""Packages of the repository, which no plugin may be named after."""

_plugins: list[str] = []
_importing: set[str] = set()
_after_import: list[Callable[[], Any]] = []

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def package_folder(name: str) -> Path | None:
    """Return the folder of a package, which is not imported; None: it is not there."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def use_configured(configuration: dict[str, Any]) -> None:
    """Import the plugins that a configuration lists, and the installed plugins.

    Raises:
        BenchError: `plugins` is not a list of module names, or see `load`.
    """
    names = configuration.get("plugins", [])
    if not isinstance(names, list):
        raise BenchError(
            f"plugins is {names!r}: expected a list of modules, for instance [my_module]"
        )
    use(*names)


def use(*names: str) -> None:
    """Import plugins in this process and in the processes that it starts.

    Notebooks call it as `dpfedbench.use_plugins`.

    Args:
        names: dotted names of modules in the working folder or of installed packages.

    Raises:
        BenchError: see `load`.
    """
    before = os.environ.get(VARIABLE, "")
    listed = dict.fromkeys([*_listed(), *names])
    os.environ[VARIABLE] = ",".join(listed)
    try:
        load()
    except BaseException:
        os.environ[VARIABLE] = before
        raise


def load() -> None:
    """Import the plugins that `VARIABLE` lists, and those that packages name.

    Repeated calls import each plugin once.

    Raises:
        BenchError: there is no such module.
    """
    if _importing:
        return
    projects = _projects()
    new = [name for name in dict.fromkeys(_names(projects)) if name not in _plugins]
    if new and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in new:
        if name in projects and str(projects[name]) not in sys.path:
            sys.path.insert(0, str(projects[name]))
        _import(name)
    if new:
        _add_accountants()
        for update in _after_import:
            update()


def modules() -> list[ModuleType]:
    """Return the imported modules of all plugins, including submodules of packages."""
    return list(
        dict.fromkeys(module for name in _plugins for module in _modules_of(name))
    )


def classes(base: Class) -> list[Class]:
    """Return the classes of all plugins that extend `base`."""
    extending = (
        value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and not is_ours(value)
    )
    return list(dict.fromkeys(extending))  # type: ignore[arg-type]


def config_folders() -> list[Path]:
    """Return the folders `config` of all plugins that are packages and have one."""
    folders = [
        Path(folder, "config")
        for name in _plugins
        for folder in getattr(sys.modules[name], "__path__", ())
    ]
    return [folder for folder in folders if folder.is_dir()]


def is_ours(thing: type | ModuleType) -> bool:
    """Return whether a class or module belongs to one of this project's packages."""
    name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return name.partition(".")[0] in PACKAGES


def after_import(update: Function) -> Function:
    """Register a function that is called each time plugins were imported."""
    _after_import.append(update)
    return update


def cached(function: Function) -> Function:
    """Cache the results of a function until further plugins are imported."""
    cache = functools.cache(function)
    _after_import.append(cache.cache_clear)
    return cache  # type: ignore[return-value]


def _add_accountants() -> None:
    """Register the accountants of plugins in dpsum."""
    base = sys.modules.get("dpsum.accounting.accountant")
    if base is not None:  # a plugin with an accountant has imported it
        from dpsum.accounting.analyses import add

        for accountant in classes(base.Accountant):
            add(accountant)


def _listed() -> list[str]:
    """Return the names in the environment variable."""
    listed = os.environ.get(VARIABLE, "").split(",")
    return [name.strip() for name in listed if name.strip()]


def _names(projects: Iterable[str]) -> Iterator[str]:
    """Yield the names of all plugins: listed ones first, then those of packages."""
    if _listed() == ["no"]:
        return
    yield from _listed()
    for point in sorted(importlib.metadata.entry_points(group=GROUP)):
        yield point.module
    yield from projects


def _projects() -> dict[str, Path]:
    """Return the plugins of the projects in a checkout's `packages`, with the folders
    of their sources.
    """
    folders: dict[str, Path] = {}
    for file in sorted(CHECKOUT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        for name in project.get("entry-points", {}).get(GROUP, {}).values():
            folders[name] = file.parent / "src"
    return folders


def _import(name: str) -> None:
    """Import one plugin.

    Raises:
        BenchError: there is no such module.
    """
    _importing.add(name)
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise BenchError(
                f"plugins: there is no module {name} in {os.getcwd()} or among the"
                " installed packages"
            ) from None
        raise
    except BenchError as error:
        # A class of the plugin is wrong. Only the traceback says which one, and a
        # BenchError would be shown without its traceback.
        raise TypeError(str(error)).with_traceback(error.__traceback__) from None
    finally:
        _importing.discard(name)
    _plugins.append(name)


def _modules_of(name: str) -> list[ModuleType]:
    """Return the imported modules of one plugin."""
    return [
        module
        for imported, module in sorted(sys.modules.items())
        if f"{imported}.".startswith(f"{name}.")
    ]
