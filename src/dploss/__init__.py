"""Numerics of privacy loss: from the noise of some rounds to epsilon and delta.

The package knows distributions, not mechanisms: no ledger, sampler or budget. It needs
only numpy and scipy. `dpsum.accounting` decides which pair of distributions a mechanism
has, and calls these functions:

- `gaussian.gaussian_epsilon(z, delta)`: the exact epsilon of one Gaussian release.
- `compositions.upper_end(stages, delta, ceiling=...)` and `lower_end(...)`: proven ends
  of epsilon of many rounds (`Stage`), from the law of the loss of one round, such as
  `round_loss.RoundLoss`.
- `renyi.renyi_epsilon(schedule, rate, delta, orders)`: the same by Renyi divergences,
  which is fast and less tight.

A thousand rounds of noise multiplier 1, each with one unit in a hundred:

    from dploss.compositions import Stage, lower_end, upper_end
    from dploss.round_loss import RoundLoss

    def laws(z, mass):
        return [RoundLoss(z, 0.01, add) for add in (False, True)]

    stage = Stage(schedule=((1.0, 1000),), rate=0.01, laws=laws)
    high = upper_end([stage], delta=1e-5, ceiling=100.0)
    low = lower_end([stage], delta=1e-5, upper=high)
    print(f"{low:.3f} to {high:.3f}")

prints `1.827 to 1.829`. Further modules: `grid_sums` (tails of sums by FFT, with error
bounds), `fine_brackets` (little noise, very many rounds, tiny delta),
`importance_sampling` (correlated rounds), `groups` (several units at once).
"""
