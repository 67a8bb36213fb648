"""Registry of methods: those in the modules of this package, and those of plugins
(`dpfedbench.plugins`). See docs/your-method.md.
"""

from typing import cast

from dpfedbench import plugins
from dpfedbench.config.kinds import defined_in, modules_in
from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.run import read_run, read_run_file

__all__ = ["METHODS", "read_run", "read_run_file"]

METHODS = cast("dict[str, type[Method]]", Method.known)
_SHIPPED = defined_in(modules_in(__name__), Method)


@plugins.after_import
def _register() -> None:
    """Put the methods of this package and of plugins into `METHODS`.

    Raises:
        BenchError: two methods have the same name.
    """
    methods: dict[str, type[Method]] = {}
    for cls in [*_SHIPPED, *plugins.classes(Method)]:
        if "name" not in vars(cls):
            continue  # a base of methods
        if cls.name in methods:
            raise BenchError(
                f"the methods in {methods[cls.name].__module__} and {cls.__module__}"
                f" both have the name {cls.name!r}: give one of them another"
            )
        methods[cls.name] = cls
    METHODS.clear()
    METHODS.update(sorted(methods.items()))


_register()
plugins.load()
