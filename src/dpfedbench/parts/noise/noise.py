"""Base classes of noises: their settings, on top of what `dpsum.noise` draws.

A class that draws, sums or combines in its own way names a mechanism of its own; see
`dpsum.noise.Noise`.
"""

from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting
from dpfedbench.settings.run import Run
from dpsum import noise


class Noise(Part, noise.Noise):
    """Base of the kinds of noise.

    Raises:
        BenchError: when a class is made that changes what is drawn or summed under a
            mechanism that it did not name.
    """

    place: ClassVar[str] = "dpfedbench.parts.noise"
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of history.csv that its sums fill (`PrivateSum.told`)."""

    multiplier: float | None


class Fixed(Noise, noise.Independent):
    """Independent Gaussian noise of deviation z C in each round."""

    kind: Literal["fixed"] = "fixed"
    multiplier: float | None = setting(
        1.0,
        ge=1e-3,
        le=1e7,
        doc=(
            "z: noise standard deviation over C; null: the least that the budget allows"
        ),
        paper="1",
    )


class Decaying(Noise, noise.Decaying):
    """After `falls` falls in a row of a public validation loss, z is multiplied by
    `decay` (Adap DP-FL, IV-B).
    """

    kind: Literal["decaying"] = "decaying"
    multiplier: float | None = setting(
        6.0,
        ge=1e-3,
        le=1e6,
        doc="z of the first round",
        paper="6 (MNIST), 4 (Fashion-MNIST)",
    )
    decay: float = setting(
        0.9999, gt=0, lt=1, doc="beta", paper="0.9999 (MNIST), 0.9998 (Fashion-MNIST)"
    )
    falls: int = setting(
        3, ge=1, le=1_000_000, doc="falls in a row of the validation loss", paper="3"
    )

    def check(self, run: Run) -> None:
        if not run.validation.public:
            raise BenchError(
                "validation.public is false, but its loss drives the noise (noise.kind"
                " decaying): what it tells of private records is in no account; take"
                " public records, or noise.kind fixed"
            )
        if not run.validation.every:
            raise BenchError(
                "noise.kind is decaying, but validation.every is 0: set it to 1"
            )
        if self.multiplier is None:
            raise BenchError(
                "noise.multiplier is null, but noise that decays needs a first value:"
                " give one"
            )
