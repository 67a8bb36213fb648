"""The private sum: the one primitive that releases private data; norms and clipping.

Formal guarantee. Neighbouring inputs differ in one unit, whose contribution is replaced
by zero (zero-out). Each contribution is scaled to at most C in one L2 norm over all
parameters, so the sums of neighbours differ by at most C, and the release is the
Gaussian mechanism of sensitivity C and standard deviation z C: (epsilon, delta) of
`dploss.gaussian.gaussian_epsilon(z, delta)`. Under replace-one adjacency the
sensitivity is 2 C. A sum for that adjacency (a client's own update, which is always
present) has noise of standard deviation 2 z C and the same (epsilon, delta).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.parameters import check_range

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# Norms and clipping of one contribution, for every finite array. The squares of 1e200 and
# of 1e-200 are outside the range of double precision. Such arrays are first scaled by
# their largest magnitude, so that no finite array raises an error or gets a wrong norm.

_LOW = 1e-145
_HIGH = 1e145
_LEAST_FACTOR = 1e-290


def l2_norm(values: np.ndarray) -> float:
    """Return the L2 norm of a float64 vector [d].

    Returns:
        NaN where a coordinate is not finite; the largest double where the norm is
        beyond it.
    """
    if not np.isfinite(values).all():
        return math.nan
    magnitudes = np.abs(values)
    largest = float(np.max(magnitudes, initial=0.0))
    scale = usual_scale(largest)
    if scale == 1.0:
        scaled = values
    else:
        scaled = values / scale
    square = math.fsum(scaled * scaled)
    norm = scale * math.sqrt(square)
    return min(norm, sys.float_info.max)


def usual_scale(largest: float) -> float:
    """Return the divisor of a vector before its coordinates are squared.

    Args:
        largest: the largest magnitude of its coordinates.

    Returns:
        1 where the squares are in the range of double precision, else `largest`.
    """
    if largest == 0.0 or _LOW < largest < _HIGH:
        return 1.0
    return largest


def clip(values: np.ndarray, norm: float, limit: float) -> np.ndarray:
    """Return a float64 vector [d] scaled down to the norm `limit`.

    This is the reference definition of clipping: values times min(1, limit / norm).
    Other forms compute the same faster. A test, below `tests/` or that of a package,
    holds each equal:

    | form | test |
    |---|---|
    | `dpsum.private_sum.add_rows` | `dpsum/test_clipping_forms.py` |
    | `dpfedbench.training.mechanisms.add_on_device` | `dpsum/test_clipping_forms.py` |
    | `dpkernels.clipped_sum.add_rows` | `dpsum/test_clipping_forms.py` |
    | `dpsum.group_clipping.add_rows_by_group` | `dpsum/test_group_clipping.py` |
    | `dpsum.secure.SecureSum` | `dpsum/test_secure_sum.py` |
    | `dpkernels.linear.LinearHeadGradients` | `packages/dpkernels/tests/test_linear.py` |
    | `dpkernels.lstm.FastLstm` | `packages/dpkernels/tests/test_lstm.py` |

    Args:
        values: finite coordinates.
        norm: their `l2_norm`. A vector of norm at most `limit` is returned as it is.
    """
    if norm <= limit:
        return values
    factor = limit / norm
    if norm < _HIGH and factor > _LEAST_FACTOR:
        return np.asarray(factor * values)
    # The factor alone would lose precision or be zero, and the norm may be beyond the
    # largest double.
    scaled = values / np.max(np.abs(values))
    return np.asarray((limit / l2_norm(scaled)) * scaled)


def add_rows(
    rows: np.ndarray, limit: float, total: np.ndarray, norms: np.ndarray
) -> None:
    """Clip rows and add them to a total.

    A row that is not finite is left out. Every finite row is clipped, even if its
    squares or its norm are beyond the range of double precision. Rows are added one
    after another in double precision, so that the size of chunks changes no bit.

    Args:
        rows: [n, d].
        limit: norm to which each row is clipped.
        total: float64 [d], to which the clipped rows are added.
        norms: float64 [n], set to the rows' norms before clipping (`l2_norm`).
    """
    for index, row in enumerate(rows):
        values = double(row)
        norm = l2_norm(values)
        norms[index] = norm
        if math.isfinite(norm):
            with np.errstate(over="ignore"):  # a sum without a limit may overflow
                total += clip(values, norm, limit)


def double(row: np.ndarray) -> np.ndarray:
    """Return a row in double precision; a number beyond its range becomes infinite."""
    with np.errstate(over="ignore"):
        return row.astype(np.float64)


def rows_of(contributions: ArrayLike, dimension: int) -> np.ndarray:
    """Return contributions as an array of real numbers [n, d].

    16-bit numbers that numpy does not know (bfloat16 of torch, JAX or ml_dtypes) are
    converted to single precision, which is exact.

    Raises:
        DpsumError: the contributions are not real numbers of shape [n, d].
    """
    try:
        if str(getattr(contributions, "dtype", "")).endswith("bfloat16"):
            contributions = _single(contributions)
        rows = np.asarray(contributions)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DpsumError(
            f"contributions are not an array ({error}): pass [n, {dimension}] on the"
            " CPU"
        ) from None
    if rows.ndim != 2 or rows.shape[1] != dimension:
        raise DpsumError(
            f"contributions must be [n, {dimension}], not {list(rows.shape)}"
        )
    if rows.dtype.kind not in "fiub":
        raise DpsumError(
            f"contributions are {rows.dtype}: pass real numbers [n, {dimension}]"
        )
    return rows


def _single(contributions: Any) -> Any:
    if hasattr(contributions, "float"):  # torch
        return contributions.float()
    return np.asarray(contributions).astype(np.float32)


class _Sum:
    """Base of the sums: adds up clipped contributions in double precision.

    Contributions are added one after another, so that the size of chunks changes no
    bit.
    """

    one_by_one: ClassVar[bool] = False
    """Whether the sum must see each contribution separately and refuses `add_by`."""

    groups: Any = None
    """Groups of coordinates that are clipped separately (`group_clipping`).

    None: all coordinates are clipped together.
    """

    _limit: Any = math.inf
    """Norm to which each contribution is clipped."""

    def __init__(self, *, dimension: int) -> None:
        if dimension < 1:
            raise DpsumError(f"a sum needs at least one coordinate, not {dimension}")
        self.dimension = dimension
        self.count = 0
        self.non_finite = 0
        self._total = np.zeros(dimension)
        self._released = False

    def add(self, contributions: ArrayLike) -> np.ndarray:
        """Add contributions [n, d].

        A contribution that is not finite counts as zero, and in `non_finite`.

        Returns:
            Norms before clipping, float64 [n]; not finite where a contribution is not.
            They are as sensitive as the contributions.

        Raises:
            DpsumError: the contributions are not real numbers of shape [n, d].
        """
        rows = rows_of(contributions, self.dimension)
        add = functools.partial(add_rows, rows)
        return self.add_by(add, len(rows))

    def new_norms(self, count: int) -> np.ndarray:
        """Return an empty array for the norms, float64 [count]."""
        return np.empty(count)

    def add_by(
        self, add: Callable[[float, np.ndarray, np.ndarray], None], count: int
    ) -> np.ndarray:
        """Add contributions that a compiled loop computes and adds up itself.

        The loop adds each contribution while it is in the processor's cache.

        Args:
            add: called with the limit, the total [d] and the norms [count]; it clips
                and adds its contributions as `add_rows` does.
            count: number of contributions.

        Returns:
            Norms before clipping; see `add`.
        """
        self._check_open()
        norms = self.new_norms(count)
        add(self._limit, self._total, norms)
        finite = np.isfinite(norms)
        if finite.ndim > 1:
            finite = finite.all(axis=1)
        self.count += count
        self.non_finite += count - int(finite.sum())
        return norms

    @property
    def released(self) -> bool:
        """Whether the sum was released."""
        return self._released

    def _check_open(self) -> None:
        if self._released:
            raise RuntimeError("this sum was released: nothing can be added to it")

    def release(self, standard: Any = None) -> np.ndarray:
        """Return the noised sum, float64 [d].

        Args:
            standard: noise of deviation 1 on each coordinate, float64 [d]; None where
                the sum needs no noise.

        Raises:
            RuntimeError: the sum was released before; a second release would be a
                second mechanism.
        """
        if self._released:
            raise RuntimeError("this sum was released before")
        self._released = True
        total = self._total
        self._total = np.empty(0)
        return self._noised(total, standard)

    def _noised(self, total: np.ndarray, standard: Any) -> np.ndarray:
        return total


class PlainSum(_Sum):
    """The sum without clipping or noise, for methods that claim no privacy.

    Attributes:
        norms: norms of the contributions.
    """

    def __init__(self, *, dimension: int) -> None:
        super().__init__(dimension=dimension)
        self.norms: list[float] = []

    def add_by(
        self, add: Callable[[float, np.ndarray, np.ndarray], None], count: int
    ) -> np.ndarray:
        norms = super().add_by(add, count)
        finite_norms = np.where(np.isfinite(norms), norms, 0.0)
        self.norms += finite_norms.tolist()
        return norms


class PrivateSum(_Sum):
    """The private sum: clips contributions to C, adds them up, and adds noise.

    The noise has standard deviation z times the sensitivity on every coordinate (z C
    under zero-out adjacency). An empty sum releases noise as well. Norms and the
    un-noised sum are not kept.

    Args:
        dimension: number of coordinates d.
        threshold: C, from 1e-150 to 1e150.
        noise_multiplier: z, in the same range, and z C too.
        adjacency: "zero-out" or "replace-one".

    Attributes:
        secure: the ledger's field `secure` of a sum under secure aggregation; None for
            other sums.
        public_values: for the training's history, after the release.
        signs: signs that multiplied the coordinates before the noise; the observer
            knows them.
        absent: positions in the cohort of clients that sent nothing; the observer sees
            them.
    """

    secure: Mapping[str, Any] | None = None
    public_values: Mapping[str, Any] = {}
    signs: np.ndarray | float = 1.0
    absent: Sequence[int] = ()

    def __init__(
        self,
        *,
        dimension: int,
        threshold: float,
        noise_multiplier: float,
        adjacency: str = "zero-out",
    ) -> None:
        super().__init__(dimension=dimension)
        check_range("the clipping threshold", threshold)
        check_range("noise.multiplier", noise_multiplier)
        self.threshold = float(threshold)
        self.noise_multiplier = float(noise_multiplier)
        self._reach = {"zero-out": 1.0, "replace-one": 2.0}[adjacency]
        check_range("the deviation of the noise", self.noise_std)

    @property
    def sensitivity(self) -> float:
        """Largest L2 distance by which one contribution can move the sum."""
        return self._reach * self.threshold

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        return self.noise_multiplier * self.sensitivity

    @property
    def _limit(self) -> float:  # type: ignore[override]
        return self.threshold

    def _noised(self, total: np.ndarray, standard: Any) -> np.ndarray:
        return np.asarray(total + self.noise_std * standard)
