"""Methods that train nothing on the clients' data, so that epsilon is 0: the floor, and
public data alone.
"""

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.settings.run import RandomInitial


class RandomInit(Method):
    """Random initialisation: the meta-model before any training, the floor of every
    table.
    """

    name = "random"
    title = "Random initialisation"
    paper = "dp-fedmeta"
    trained = False

    initial: RandomInitial = RandomInitial()


class PublicAlone(Method):
    """Public data alone: a model that was trained on public data, tested as any other,
    and no private datum read.

    The weights are those of another run or a file (`initial`), which have to be public:
    that run is trained on its own data set, and this one is its model under the
    meta-test of the private data set. What a private method is worth is what it adds to
    this.
    """

    name = "public-alone"
    title = "Public data alone, ε = 0"
    paper = "dp-fedmeta"
    trained = False

    def check(self) -> None:
        super().check()
        if isinstance(self.initial, RandomInitial) or not self.initial.public_for(self):
            raise BenchError(
                f"initial.kind is {self.initial.kind}, but public-alone is the test of"
                " weights of public data: give initial a run or a file, and set"
                " initial.public to true"
            )
