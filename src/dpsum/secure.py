"""The sum that secure aggregation shows: whole numbers modulo 2^b, each client's with
its share of discrete noise.

Kairouz, Liu and Steinke 2021, The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation (rotation, rounding conditioned on its norm, modulus);
Agarwal, Kairouz and Liu 2021, The Skellam Mechanism (the noise).

Each client clips its contribution to C, turns it by a random rotation H D that all know
(D: random signs, H: Walsh and Hadamard's matrix), writes it in units of the
granularity, rounds each coordinate up or down at random so that its mean stays, again
until the norm is within the bound, adds its share of Skellam noise, and sends that
modulo 2^b. The server adds the messages modulo 2^b, which is all that it sees, and
turns the sum back.

Formal guarantee. Neighbouring inputs differ in one client, whose contribution is
replaced by zero; it still sends its noise. What it sends without noise is whole numbers
of norm at most `Lattice.bound`, enforced after rounding and not only expected, so that
the sums differ by as much; the shares of `counted` clients are Skellam noise of
variance (z bound)^2 on each coordinate, and what `accounting.analyses.skellam` says of
it holds. Modulus and rotation back come after the noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.norms import clip, l2_norm
from dpsum.private_sum import PrivateSum, double, rows_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_TRIES = 64

_SMALLEST_USUAL = 1e-140
_LARGEST_USUAL = 1e140
"""Norms between these are taken without scaling: no square leaves the range of double
precision.
"""

Streams = Callable[..., Any]
"""What for, and a client's place in the cohort where each has its own, to a stream of
this round's.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lattice:
    """The whole numbers that stand for contributions.

    Attributes:
        granularity: of one unit.
        bits: b; sums are modulo 2^b.
        coordinates: D, the power of two that the dimension is filled up to.
        clients: of a cohort, each of whom adds a share of the noise.
        counted: shares that the noise consists of at least, and that the account
            counts.
    """

    granularity: float
    bits: int
    coordinates: int
    clients: int
    counted: int

    @classmethod
    def of(
        cls,
        *,
        dimension: int,
        threshold: float,
        noise_multiplier: float,
        bits: int,
        deviations: float,
        clients: int,
        counted: int,
    ) -> Lattice:
        """The finest that keeps a coordinate of the sum within half the modulus, up to
        so many of its deviations.

        The deviation is an upper end: all clients point the same way, (L C)^2 / D after
        a rotation; rounding, L / 4 units; and the noise of all shares. DpsumError where
        the modulus is too small for the noise and the rounding alone.
        """
        coordinates = 1 << max(dimension - 1, 0).bit_length()
        noise = noise_multiplier**2 * clients / counted
        rotation_error = coordinates / 4 + math.sqrt(coordinates) / 2
        rounding = clients / 4 + noise * rotation_error
        room = 4.0 ** (bits - 1) / deviations**2 - rounding
        if room <= 0:
            least_bits = math.log(deviations**2 * rounding, 4)
            least = math.floor(1 + least_bits) + 1
            raise DpsumError(
                f"noise.bits is {bits}, too few for the sum of {clients} clients'"
                f" {coordinates} coordinates at z = {noise_multiplier:g}: the smallest"
                f" that holds it is {least}"
            )
        units = (
            noise + math.sqrt(noise**2 + 4 * room * (clients**2 / coordinates + noise))
        ) / (2 * room)
        return cls(
            granularity=threshold * units,
            bits=bits,
            coordinates=coordinates,
            clients=clients,
            counted=counted,
        )

    def bound(self, threshold: float) -> float:
        """The largest norm, in units, of a contribution of norm `threshold` after
        rounding.

        Kairouz et al. 2021, with beta = e^-1/2: two of five draws or more are within
        it.
        """
        norm = threshold / self.granularity
        root = math.sqrt(self.coordinates)
        return math.sqrt(
            min(norm**2 + self.coordinates / 4 + norm + root / 2, (norm + root) ** 2)
        )

    def said(self, *, threshold: float, noise_multiplier: float) -> dict[str, Any]:
        """Return the ledger's group `secure`: the lattice, and the variance of one
        client's share of the noise, in units.
        """
        noise_std = noise_multiplier * self.bound(threshold)
        share = noise_std**2 / self.counted
        return {**dataclasses.asdict(self), "share_variance": share}


def rotated(values: np.ndarray) -> np.ndarray:
    """Walsh and Hadamard's matrix times values [D], D a power of two, over D^1/2: its
    own inverse.
    """
    bits = len(values).bit_length() - 1
    table = np.array(values, dtype=float).reshape(1 << bits // 2, -1)
    # Of a table's columns and then of its rows, so that what is added lies in a row.
    for _ in range(2):
        half = 1
        while half < len(table):
            pairs = table.reshape(-1, 2, half * table.shape[1])
            less = pairs[:, 0] - pairs[:, 1]
            pairs[:, 0] += pairs[:, 1]
            pairs[:, 1] = less
            half *= 2
        table = np.ascontiguousarray(table.T)
    norm = math.sqrt(len(values))
    return np.asarray(table.reshape(-1) / norm)


def rounded(
    values: np.ndarray, bound: float, generator: np.random.Generator
) -> np.ndarray:
    """Whole numbers [D] of mean `values` (but for the condition), whose norm is at most
    `bound`: int64.

    After 64 draws beyond it (less than one in 10^13) all are rounded towards zero,
    which makes no norm larger.
    """
    lower = np.floor(values)
    share = values - lower
    for _ in range(_TRIES):
        is_up = generator.random(len(values)) < share
        candidate = lower + is_up
        if candidate @ candidate <= bound**2:
            return candidate.astype(np.int64)
    return np.trunc(values).astype(np.int64)


class SecureSum(PrivateSum):
    """The sum of a cohort's messages, as a server that runs secure aggregation sees it.

    Args:
        threshold, noise_multiplier: C and z, deviation of the noise that is counted
            over the sensitivity after rounding.
        lattice: the whole numbers.
        dropped: clients of the cohort that drop out, with their noise.
        streams: random streams of the round.
        colluding: clients of the cohort that may tell the server their noise. None of
            those who drop out need be one of them, so nothing is released unless
            `counted` shares are in the sum besides all of theirs.

    Attributes:
        told: what the history may say, after the release: coordinates that left the
            modulus's range, and clients that dropped out. The former follow from the
            noised sum over all whole numbers, of which the account holds too; the
            latter the server sees, and they are drawn without a look at the data.
    """

    one_by_one: ClassVar[bool] = True

    def __init__(
        self,
        *,
        dimension: int,
        threshold: float,
        noise_multiplier: float,
        lattice: Lattice,
        dropped: int,
        streams: Streams,
        colluding: int = 0,
    ) -> None:
        self.lattice = lattice
        self._colluding = colluding
        super().__init__(
            dimension=dimension, threshold=threshold, noise_multiplier=noise_multiplier
        )
        self._bound = lattice.bound(threshold)
        self._streams = streams
        self._modulus = 1 << lattice.bits
        self._signs = (
            streams("-rotation").integers(2, size=lattice.coordinates) * 2.0 - 1.0
        )
        self.signs = self._signs[:dimension]
        self.absent = (
            streams("-dropout").permutation(lattice.clients)[:dropped].tolist()
        )
        self._seen_sum = np.zeros(lattice.coordinates, np.int64)
        self._whole_sum = self._seen_sum.copy()
        self._shares = 0
        self.told: dict[str, Any] = {}

    @property
    def sensitivity(self) -> float:
        return self.lattice.granularity * self.lattice.bound(self.threshold)

    @property
    def secure(self) -> dict[str, Any]:  # type: ignore[override]
        return self.lattice.said(
            threshold=self.threshold, noise_multiplier=self.noise_multiplier
        )

    def add(self, contributions: ArrayLike) -> np.ndarray:
        """Like `PrivateSum.add()`; each row is a client's, in the cohort's order."""
        rows = rows_of(contributions, self.dimension)
        self._check_open()
        norms = np.empty(len(rows))
        for index, row in enumerate(rows):
            norms[index] = self._take(double(row))
            self.non_finite += not math.isfinite(norms[index])
        return norms

    def add_by(self, add: Any, count: int) -> np.ndarray:
        """Refused: a compiled loop would add contributions up before each client could
        round its own.
        """
        raise RuntimeError("a secure sum takes contributions one by one")

    def _take(self, row: np.ndarray) -> float:
        """One client's message, if it does not drop out; returns its norm before
        clipping.
        """
        position = self.count
        self.count += 1
        with np.errstate(over="ignore", invalid="ignore"):
            norm = float(np.linalg.norm(row))
        clipped_norm = norm
        if not _SMALLEST_USUAL < norm < _LARGEST_USUAL:
            norm = l2_norm(row)
            clipped_norm = min(norm, self.threshold)
            if math.isfinite(norm):
                row = clip(row, norm, self.threshold)
        if position in self.absent:
            return norm
        message = self._encoded(row, clipped_norm, position)
        sent = message + self._share(position)
        self._shares += 1
        self._whole_sum += sent
        seen_sum = self._seen_sum + sent % self._modulus
        self._seen_sum = seen_sum % self._modulus
        return norm

    def _encoded(self, row: np.ndarray, norm: float, place: int) -> np.ndarray:
        """A contribution as whole numbers: clipped, rotated, rounded. One that is not
        finite is zero.
        """
        values = np.zeros(self.lattice.coordinates)
        if math.isfinite(norm) and norm > 0:
            values[: self.dimension] = row * (
                min(1.0, self.threshold / norm) / self.lattice.granularity
            )
        return rounded(
            rotated(self._signs * values),
            self._bound,
            self._streams("-rounding", place),
        )

    def _share(self, place: int) -> np.ndarray:
        """A client's Skellam noise [D], int64: the difference of two Poisson
        variables.
        """
        generator = self._streams("", place)
        size = self.lattice.coordinates
        rate = self.secure["share_variance"] / 2
        return generator.poisson(rate, size) - generator.poisson(rate, size)

    def _noised(self, total: np.ndarray, standard: Any) -> np.ndarray:
        """The sum as the server saw it, with the noise in it, turned back."""
        if self._shares - self._colluding < self.lattice.counted:
            colluders_note = f", of whom {self._colluding} may tell theirs" * (
                self._colluding > 0
            )
            raise DpsumError(
                f"{self._shares} clients' noise is in the sum{colluders_note}, fewer than the"
                f" {self.lattice.counted} that the account counts: nothing is released;"
                " raise noise.dropped_at_most"
            )
        half = self._modulus // 2
        centred = (self._seen_sum + half) % self._modulus - half
        self.told = {
            "wrapped": int((centred != self._whole_sum).sum()),
            "dropped": len(self.absent),
        }
        back = self._signs * rotated(centred) * self.lattice.granularity
        return np.array(back[: self.dimension])
