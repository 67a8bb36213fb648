"""Overlays of a configuration, their order, and the check that each sets only keys that
its runs have.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dpfedbench.config.merge import KeyFault, check
from dpfedbench.config.messages import dotted
from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.datasets import known_name
from dpfedbench.papers import METHODS


def check_overlays(configuration: Configuration) -> None:
    """Refuse invalid keys and values of overlays.

    An overlay for several methods has to fit one of them; an overlay for one method has
    to fit that method.

    Raises:
        BenchError: names the full key.
    """
    methods = list(METHODS.values())
    groups = {group for cls in methods for group in cls.groups()}
    for where, overlay, group in overlays(configuration):
        fitting = methods
        if group:
            known_name(group, groups, where, "method")
            fitting = [cls for cls in methods if group in cls.groups()]
        check_method_and_seed(overlay, where)
        check(fitting, overlay, where)


def overlays(
    configuration: Configuration,
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield all overlays with their keys, and the group of methods of each.

    The group is a name of `Method.groups`; "" for overlays that all methods share, of
    which a method takes the parts that it declares.
    """
    for key in ("small", "methods"):
        for name, overlay in getattr(configuration, key).items():
            yield f"{key}.{name}", overlay, name
    yield "run", configuration.run, ""
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
            message = (
                f"unknown key {where}.{key}: a run has its method from its series and"
                " its seed from seeds"
            )
            raise KeyFault(message, dotted(where, key))
