"""Public data alone: a model that was trained on public data, tested as any other, and no private datum read.

The weights are those of another run or a file (`initial`), which have to be public: that run is trained on its own
data set, and this one is its model under the meta-test of the private data set. What a private method is worth is what
it adds to this.
"""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.settings.run import RandomInitial


class PublicAlone(Method):
    """No rounds on the clients' data, so that epsilon is 0."""

    name: ClassVar[str] = "public-alone"
    title: ClassVar[str] = "Public data alone, ε = 0"
    paper: ClassVar[str] = "dp-fedmeta"
    trained: ClassVar[bool] = False

    def check(self) -> None:
        super().check()
        if isinstance(self.initial, RandomInitial) or not self.initial.public_for(self):
            raise BenchError(
                f"initial.kind is {self.initial.kind}, but public-alone is the test of weights of public data: give "
                "initial a run or a file, and set initial.public to true"
            )
