"""How noisy a client's update is: the paper's lemma on the variance of updates, and its proof.

The variance of a vector is the sum of the variances of its p coordinates. Every argument is a
public number, except the norm of the mean gradient, which only a simulation knows.

>>> mnist = LocalRound(
...     records=8000, batch_size=32, local_epochs=1, learning_rate=0.005,
...     num_parameters=28_938, clip_norm=1.0, noise_multiplier=1.3,
... )
>>> print(f"{noise_variance(mnist):.3f}")
0.298
"""

import dataclasses

from rdpcfl_tff.privacy.accounting import steps_per_round


@dataclasses.dataclass(frozen=True)
class LocalRound:
    """What one client does in one round.

    Attributes:
        records: N.
        batch_size: b, of this round.
        local_epochs: K.
        learning_rate: eta.
        num_parameters: p.
        clip_norm: c.
        noise_multiplier: z.
    """

    records: int
    batch_size: int
    local_epochs: int
    learning_rate: float
    num_parameters: int
    clip_norm: float
    noise_multiplier: float


def noise_variance(local: LocalRound) -> float:
    """The lemma: K N eta^2 p c^2 z^2 / b^3, the variance of one round's noise alone."""
    steps = local.local_epochs * local.records / local.batch_size
    return steps * local.learning_rate**2 * _noise_of_gradient(local)


def gradient_variance(local: LocalRound, mean_gradient_norm: float) -> float:
    """The proof's variance of one noised batch gradient: (c^2 - |G|^2) / b + p c^2 z^2 / b^2.

    Its first term, the batch's own variance, holds if every gradient is clipped, and if batches
    have exactly b records, drawn independently. The lemma drops it, because p is large.
    """
    sampling = (local.clip_norm**2 - mean_gradient_norm**2) / local.batch_size
    return sampling + _noise_of_gradient(local)


def update_variance(local: LocalRound, mean_gradient_norm: float) -> float:
    """What the lemma was before it was simplified: every step adds eta^2 `gradient_variance`.

    The steps are counted as they are taken, K ceil(N / b), and taken for independent of each other.
    """
    steps = steps_per_round(local.records, local.batch_size, local.local_epochs)
    return steps * local.learning_rate**2 * gradient_variance(local, mean_gradient_norm)


def _noise_of_gradient(local: LocalRound) -> float:
    return local.num_parameters * (local.clip_norm * local.noise_multiplier / local.batch_size) ** 2
