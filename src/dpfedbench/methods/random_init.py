"""Random initialisation: the meta-model before any training, the floor of every table."""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.method import Method
from dpfedbench.settings.run import RandomInitial


class RandomInit(Method):
    """No rounds, so nothing is computed from any client."""

    name: ClassVar[str] = "random"
    title: ClassVar[str] = "Random initialisation"
    paper: ClassVar[str] = "dp-fedmeta"

    trained: ClassVar[bool] = False

    initial: RandomInitial = RandomInitial()
