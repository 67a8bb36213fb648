"""The private sum under secure aggregation: integers modulo 2^b with discrete noise.

Kairouz, Liu and Steinke 2021, The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation (rotation, rounding conditioned on its norm, modulus);
Agarwal, Kairouz and Liu 2021, The Skellam Mechanism (the noise).

Each client

1. clips its contribution to C,
2. applies a random rotation H D that everyone knows (D: random signs, H: Walsh-Hadamard
   matrix),
3. divides by the granularity,
4. rounds each coordinate up or down at random, with unchanged mean, and draws the
   rounding again until the norm is within the bound,
5. adds its share of Skellam noise, and
6. sends the result modulo 2^b.

The server sees only the sum of the messages modulo 2^b, and rotates it back.

Formal guarantee. Neighbouring inputs differ in one client, whose contribution is
replaced by zero; it still sends its noise. A client's message without noise is a vector
of integers of norm at most `Lattice.bound`. The bound is enforced after rounding and
does not only hold in expectation, so that the sums of neighbours differ by at most as
much. The shares of `counted` clients are Skellam noise of variance (z bound)^2 on each
coordinate, and the analysis in `accounting.analyses.skellam` applies. Modulus and
inverse rotation are post-processing of the noised sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.private_sum import PrivateSum, clip, double, l2_norm, rows_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_TRIES = 64

_SMALLEST_USUAL = 1e-140
_LARGEST_USUAL = 1e140
"""Norms between these need no scaling: all squares are within double precision."""

Streams = Callable[..., Any]
"""Function from a purpose, and optionally a client's position in the cohort, to a
random stream of the round.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lattice:
    """The integer lattice to which contributions are rounded.

    Attributes:
        granularity: size of one unit of the lattice.
        bits: b; sums are modulo 2^b.
        coordinates: D, the power of two to which the dimension is padded.
        clients: number of clients of a cohort; each adds a share of the noise.
        counted: number of shares that the account counts. At least as many are in the
            sum.
    """

    granularity: float
    bits: int
    coordinates: int
    clients: int
    counted: int

    @classmethod
    def finest(
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
        """Return the lattice of the smallest granularity that the modulus allows.

        Half the modulus must hold `deviations` standard deviations of a coordinate of
        the sum. That standard deviation is an upper bound. Its variance has three
        parts: the sum of contributions that all point the same way, (L C)^2 / D after a
        rotation; rounding, L / 4 squared units; and the noise of all shares.

        Args:
            dimension: number of coordinates d.
            threshold: C.
            noise_multiplier: z.
            bits: b; sums are modulo 2^b.
            deviations: number of standard deviations that half the modulus holds.
            clients: L, the size of a cohort.
            counted: number of shares of noise that the account counts.

        Raises:
            DpsumError: the modulus is too small for the noise and the rounding alone.
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
        square = clients**2 / coordinates + noise
        discriminant = noise**2 + 4 * room * square
        units = (noise + math.sqrt(discriminant)) / (2 * room)
        return cls(
            granularity=threshold * units,
            bits=bits,
            coordinates=coordinates,
            clients=clients,
            counted=counted,
        )

    def bound(self, threshold: float) -> float:
        """Return the largest allowed norm, in units, of a rounded contribution.

        Kairouz et al. 2021, with beta = e^-1/2: at least two of five roundings are
        within the bound.

        Args:
            threshold: norm of the contribution before rounding.
        """
        norm = threshold / self.granularity
        root = math.sqrt(self.coordinates)
        likely_square = norm**2 + self.coordinates / 4 + norm + root / 2
        largest_square = (norm + root) ** 2
        return math.sqrt(min(likely_square, largest_square))

    def ledger_field(
        self, *, threshold: float, noise_multiplier: float
    ) -> dict[str, Any]:
        """Return the ledger's field `secure`.

        It holds the lattice, and the variance of one client's share of the noise in
        squared units.
        """
        noise_std = noise_multiplier * self.bound(threshold)
        share = noise_std**2 / self.counted
        return {**dataclasses.asdict(self), "share_variance": share}


def rotated(values: np.ndarray) -> np.ndarray:
    """Return the Walsh-Hadamard transform of values [D], divided by D^1/2.

    D is a power of two. The transform is its own inverse.
    """
    bits = len(values).bit_length() - 1
    rows = 1 << bits // 2
    table = np.array(values, dtype=float).reshape(rows, -1)
    # First the table's columns, then its rows, so that each sum runs over a whole row.
    for _ in range(2):
        half = 1
        while half < len(table):
            columns = table.shape[1]
            pairs = table.reshape(-1, 2, half * columns)
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
    """Round values at random to integers whose norm is at most `bound`.

    The mean is `values`, except for the condition on the norm. After 64 draws beyond
    the bound (probability below 1e-13) all values are rounded towards zero, which does
    not increase the norm.

    Args:
        values: float64 [D].
        bound: largest norm of the result.
        generator: draws the roundings.

    Returns:
        int64 [D].
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
    """The sum of a cohort's messages, as the server of secure aggregation sees it.

    Args:
        dimension: number of coordinates d.
        threshold: C.
        noise_multiplier: z, the deviation of the counted noise over the sensitivity
            after rounding.
        lattice: the integer lattice.
        dropped: number of clients of the cohort that drop out, with their noise.
        streams: random streams of the round.
        colluding: number of clients of the cohort that may reveal their noise to the
            server. Possibly none of them drops out. So nothing is released unless the
            sum has `counted` shares besides all of theirs.

    Attributes:
        public_values: for the training's history, after the release: the number of
            coordinates that left the range of the modulus, and of clients that dropped
            out. The former follow from the noised sum before the modulus, which the
            account also covers. The server sees the latter, which are drawn
            independently of the data.
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
        self.public_values: dict[str, Any] = {}

    @property
    def sensitivity(self) -> float:
        return self.lattice.granularity * self.lattice.bound(self.threshold)

    @property
    def secure(self) -> dict[str, Any]:  # type: ignore[override]
        return self.lattice.ledger_field(
            threshold=self.threshold, noise_multiplier=self.noise_multiplier
        )

    def add(self, contributions: ArrayLike) -> np.ndarray:
        """Like `PrivateSum.add()`. Rows are the clients' in the order of the cohort."""
        rows = rows_of(contributions, self.dimension)
        self._check_open()
        norms = np.empty(len(rows))
        for index, row in enumerate(rows):
            norms[index] = self._take(double(row))
            self.non_finite += not math.isfinite(norms[index])
        return norms

    def add_by(self, add: Any, count: int) -> np.ndarray:
        """Refuse: a compiled loop would add contributions before clients round them."""
        raise RuntimeError("a secure sum takes contributions one by one")

    def _take(self, row: np.ndarray) -> float:
        """Add one client's message, unless the client drops out.

        Returns:
            Norm of the contribution before clipping.
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
        """Clip, rotate and round a contribution; one that is not finite becomes zero."""
        values = np.zeros(self.lattice.coordinates)
        if math.isfinite(norm) and norm > 0:
            factor = min(1.0, self.threshold / norm)
            factor = factor / self.lattice.granularity
            values[: self.dimension] = row * factor
        turned = rotated(self._signs * values)
        generator = self._streams("-rounding", place)
        return rounded(turned, self._bound, generator)

    def _share(self, place: int) -> np.ndarray:
        """Draw a client's Skellam noise, int64 [D]: a difference of two Poissons."""
        generator = self._streams("", place)
        size = self.lattice.coordinates
        rate = self.secure["share_variance"] / 2
        plus = generator.poisson(rate, size)
        minus = generator.poisson(rate, size)
        return plus - minus

    def _noised(self, total: np.ndarray, standard: Any) -> np.ndarray:
        """Return the sum that the server sees, with its noise, rotated back."""
        if self._shares - self._colluding < self.lattice.counted:
            colluders_note = ""
            if self._colluding > 0:
                colluders_note = f", of whom {self._colluding} may tell theirs"
            raise DpsumError(
                f"{self._shares} clients' noise shares are in the"
                f" sum{colluders_note}, fewer than the {self.lattice.counted} that"
                " the account counts: nothing is released; raise"
                " noise.dropped_at_most"
            )
        half = self._modulus // 2
        centred = (self._seen_sum + half) % self._modulus - half
        self.public_values = {
            "wrapped": int((centred != self._whole_sum).sum()),
            "dropped": len(self.absent),
        }
        back = self._signs * rotated(centred) * self.lattice.granularity
        return np.array(back[: self.dimension])
