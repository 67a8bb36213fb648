"""jax_privacy's batch selections with its Gaussian noise, and the claims of its events: a
loop outside `jax.jit` of 600 examples, 100 rounds, clipping at 1 and z = 1.

Truncated and cyclic Poisson samples are left out: dpsum has no analysis of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "jax-privacy"

EXAMPLES = 600
ROUNDS = 100
NOISE = 1.0
BATCH = 30
DELTA = 1e-5


def runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a run of each batch selection that has an event, and of balls in bins."""
    import dp_accounting
    import jax.numpy as jnp
    import numpy as np
    from jax_privacy import batch_selection, clipping, noise_addition
    from jax_privacy.experimental import accounting

    from dpwatch.adapters.jax_privacy import watch

    data = np.random.default_rng(0).normal(size=(EXAMPLES, 20)).astype(np.float32)
    rate = BATCH / EXAMPLES
    settings = f"{EXAMPLES} examples, {ROUNDS} rounds, z = {NOISE:g}"

    def loss(weights: Any, rows: Any) -> Any:
        return jnp.mean((rows @ weights - 1.0) ** 2)

    def run(
        selection: Any,
        *,
        what: str,
        event: Any = None,
        accountant: Any = None,
        **texts: str,
    ) -> dict[str, Any]:
        watched = watch(
            selection,
            clipping.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=1),
            noise_addition.gaussian_privatizer(stddev=NOISE, prng_key=0),
            folder / f"{what}.jsonl",
            examples=EXAMPLES,
            stddev=NOISE,
            event=event,
            accountant=accountant,
        )
        weights = jnp.zeros(20)
        state = watched.privatizer.init(weights)
        for indices in watched.batches(0):
            total = watched.clipped(weights, data[indices])
            noisy, state = watched.privatizer.update(total, state)
            weights = weights - 0.001 * noisy
        return {
            "watched": watched,
            "delta": DELTA,
            "audit": False,
            "what": f"jax_privacy, {what}",
            "source": f"{settings}, batches of {BATCH} in expectation",
        } | texts

    yield run(
        batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=ROUNDS),
        what="CyclicPoissonSampling of one group, dpsgd_event",
        event=accounting.dpsgd_event(NOISE, ROUNDS, sampling_prob=rate),
        why=(
            "Right: the batches are Poisson samples, and dp_accounting's privacy loss"
            " distribution under zero-out, the default of execution plans, is of them."
        ),
    )

    yield run(
        batch_selection.FixedBatchSampling(batch_size=BATCH, iterations=ROUNDS),
        what="FixedBatchSampling without replacement, fixed_dpsgd_event",
        source=f"{settings}, batches of {BATCH}",
        event=accounting.fixed_dpsgd_event(
            NOISE / 2, ROUNDS, dataset_size=EXAMPLES, batch_size=BATCH
        ),
        accountant=lambda: dp_accounting.rdp.RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        ),
        why=(
            "The event has an account for replacing an example alone. That moves the sum"
            " by twice the clipping norm, so that the event has z / 2. What is proven is"
            " for an example whose contribution becomes zero, a smaller change."
        ),
    )

    yield run(
        batch_selection.BallsInBinsSampling(iterations=ROUNDS, cycle_length=ROUNDS),
        what="BallsInBinsSampling, one cycle",
        source=f"{settings}, one cycle",
        why=(
            "No event of jax_privacy claims an ε for it; its experimental part"
            " estimates one by Monte Carlo."
        ),
    )
