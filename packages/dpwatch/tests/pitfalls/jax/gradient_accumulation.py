"""jax_privacy, where every release has the same noise."""

import dp_accounting
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import batch_selection, noise_addition

generator = np.random.default_rng(0)
features = generator.normal(size=(200, 5))
labels = features[:, 0] > 0
weights = jnp.zeros(5)


def loss(weights, rows, targets):
    logits = rows @ weights
    return jnp.mean(jnp.logaddexp(0.0, jnp.where(targets, -logits, logits)))


gradient = jax_privacy.clipped_grad(
    loss, l2_clip_norm=1.0, batch_argnums=(1, 2), normalize_by=20
)
privatizer = noise_addition.gaussian_privatizer(
    stddev=1.0 * gradient.sensitivity(), prng_key=jax.random.key(0)
)
noise_state = privatizer.init(weights)
batches = batch_selection.CyclicPoissonSampling(sampling_prob=0.1, iterations=3)
for batch in batches.batch_iterator(200, rng=0):
    rows, targets = features[batch], labels[batch]
    clipped = gradient(weights, rows, targets)
    noisy, _ = privatizer.update(clipped, noise_state)
    weights = weights - 0.1 * noisy
gaussian = dp_accounting.GaussianDpEvent(1.0)
sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian)
event = dp_accounting.SelfComposedDpEvent(sampled, 3)
accountant = dp_accounting.pld.PLDAccountant()
print(f"epsilon {accountant.compose(event).get_epsilon(1e-5):.2f}")
