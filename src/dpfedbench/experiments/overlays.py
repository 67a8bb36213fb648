"""Overlays of a configuration, and the check that each sets only keys that its runs
have.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dpfedbench.config.merge import check
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.datasets import known_name
from dpfedbench.method import Method

Methods = Mapping[str, type[Method]]
"""Methods by name."""


def check_overlays(configuration: Configuration, methods: Methods) -> None:
    """Refuse invalid keys and values of overlays.

    An overlay for all methods has to fit one of them; an overlay for one method has to
    fit that method.

    Raises:
        BenchError: names the full key.
    """
    everything = list(methods.values())
    for where, overlay, method in overlays(configuration):
        if method:
            known_name(method, methods, where, "method")
        check_method_and_seed(overlay, where)
        check([methods[method]] if method else everything, overlay, where)


def overlays(
    configuration: Configuration,
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield all overlays with their keys and the method of each; "" for all."""
    yield "run", configuration.run, ""
    yield from (
        (f"methods.{name}", overlay, name)
        for name, overlay in configuration.methods.items()
    )
    for paper, experiment in configuration.experiments.items():
        if experiment is not None:
            where = f"experiments.{paper}"
            yield from (
                (f"{where}.{key}", getattr(experiment, key), "")
                for key in ("run", "published_at")
            )
            for group in ("tasks", "variants", "methods", "published_at_methods"):
                for name, overlay in getattr(experiment, group).items():
                    yield (
                        f"{where}.{group}.{name}",
                        overlay,
                        name if "methods" in group else "",
                    )


def check_method_and_seed(overlay: Mapping[str, Any], where: str) -> None:
    """Refuse an overlay that sets the method or the seed of a run."""
    for key in ("method", "seed"):
        if key in overlay:
            raise BenchError(
                f"unknown key {where}.{key}: a run has its method from its series and"
                " its seed from seeds"
            )
