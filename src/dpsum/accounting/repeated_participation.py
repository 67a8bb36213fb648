"""Joint sensitivity of all releases to a unit that takes part in several known rounds.

A set of rounds is allowed if any two are at least `separation` apart, and there are at
most `participations` of them (b-min-sep participation, Choquette-Choo et al.,
(Amplified) Banded Matrix Factorization, 2023). Let the releases be C S + Z, with G =
C^T C and Z standard normal, and let the unit contribute vectors of norm at most 1 in
the rounds of a set. The releases then move by a vector whose squared length is at most
the sum over the set's pairs of |G_st|. Contributions that all point the same way reach
it where no such entry is below 0. Orthogonal contributions reach the sum of G_tt.

`sensitivity` brackets the square root of the largest such sum over the sets:

- Independent noise, and an encoder whose columns that far apart do not overlap (no more
  than `separation` bands): a sum over single rounds, of which `heaviest` finds the
  largest set exactly.
- If G has no entry below 0 and does not grow along its diagonals nor, from the diagonal
  on, along its rows, then the rounds 0, b, 2b, ... are the worst set. For the i-th and
  the j-th round of another set are, i < j, no earlier and no less far apart, and G
  grows in neither (for Toeplitz encoders of falling weights: Kalinin and Lampert 2024).
- In general the sum over the set of what each of its rounds can have at most with
  others, which is a sum over single rounds again.

The low end is that of the rounds t, t + b, t + 2b, ..., for the worst first round t.
`participation.MinSeparation` draws exactly these (with b = 1, `Everyone` does). The
high end holds for all allowed sets, so that the bracket is wide where uneven columns
have a worse set that is not drawn.
"""

import math

import numpy as np

_ROUNDING = 1e-12


def heaviest(weights: np.ndarray, separation: int, participations: int) -> float:
    """Return the largest sum of weights over an allowed set of rounds.

    Weights are at least 0, float64 [rounds].
    """
    rounds = len(weights)
    most_rounds = -(-rounds // separation)
    last_allowed = np.arange(rounds) - separation + 1
    last_allowed = np.maximum(last_allowed, 0)
    # The largest sum of a set of at most k of the first t rounds, for each t.
    largest_sums = np.zeros(rounds + 1)
    for _ in range(min(participations, most_rounds)):
        sums_before = largest_sums[last_allowed]
        best_so_far = np.maximum.accumulate(weights + sums_before)
        largest_sums = np.append(0.0, best_so_far)
    return float(largest_sums[-1])


def sensitivity(
    gram: np.ndarray, separation: int, participations: int
) -> tuple[float, float]:
    """Return proven ends of the joint sensitivity, in deviations of the noise.

    The unit's contributions have norm at most 1.

    Args:
        gram: G = C^T C over the variance, float64 [rounds, rounds].
        separation: least number of rounds between two participations, at least 1.
        participations: largest number of participations, at least 1.
    """
    sizes = np.abs(gram)
    rounds = len(gram)
    diagonal = np.diag(gram)
    indices = np.arange(rounds)
    differences = np.subtract.outer(indices, indices)
    distances = np.abs(differences)
    allowed_sizes = np.where(distances >= separation, sizes, 0.0)
    sums_with_others = [
        heaviest(row, separation, participations - 1) for row in allowed_sizes
    ]
    weights = diagonal + sums_with_others
    high = heaviest(weights, separation, participations)
    periodic = periodic_rounds(rounds, separation, participations)
    low = max(_square_distance(gram, drawn) for drawn in periodic)
    if _falls(gram):
        high = min(high, _aligned_square(gram, periodic[0]))
    if math.isclose(low, high, rel_tol=_ROUNDING):
        low = high  # the same sum, added up in another order
    return math.sqrt(low), math.sqrt(high)


def periodic_rounds(
    rounds: int, separation: int, participations: int
) -> list[np.ndarray]:
    """Return the sets of rounds t, t + b, ..., for each first round t.

    Args:
        rounds: number of rounds that were run.
        separation: b.
        participations: largest number of rounds of a set.
    """
    indices = np.arange(rounds)
    firsts = range(min(separation, rounds))
    return [indices[first::separation][:participations] for first in firsts]


def _aligned_square(gram: np.ndarray, rounds: np.ndarray) -> float:
    """Return the square distance of contributions that all point the same way."""
    block = gram[np.ix_(rounds, rounds)]
    return float(block.sum())


def _square_distance(gram: np.ndarray, rounds: np.ndarray) -> float:
    """Return the larger square distance of aligned and of orthogonal contributions."""
    diagonal = np.diag(gram)
    orthogonal_square = float(diagonal[rounds].sum())
    return max(_aligned_square(gram, rounds), orthogonal_square)


def _falls(gram: np.ndarray) -> bool:
    """Return whether G has no entry below 0 and falls along diagonals and rows.

    Rows count from the diagonal on. The check allows for rounding.
    """
    largest = float(np.abs(gram).max())
    slack = _ROUNDING * largest
    if not gram.min() >= -slack:
        return False
    before = gram[:-1, :-1]
    falls_along = gram[1:, 1:] <= before + slack
    if not falls_along.all():
        return False
    before_in_row = gram[:, :-1]
    upper = np.triu(gram)
    falls_in_rows = upper[:, 1:] <= before_in_row + slack
    from_the_diagonal = np.triu_indices(len(gram) - 1)
    return bool(falls_in_rows[from_the_diagonal].all())
