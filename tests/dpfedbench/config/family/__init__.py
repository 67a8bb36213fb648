"""A made-up family of parts: its base is here, its parts are in the modules beside."""

from typing import ClassVar

from dpfedbench.config.part import Part


class Rule(Part):
    package: ClassVar[str] = "tests.dpfedbench.config.family"


class SharedRule(Rule):
    """Of some of the parts."""
