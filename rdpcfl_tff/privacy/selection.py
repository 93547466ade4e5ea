"""Private choice among cluster models: the exponential mechanism, by Gumbel noise on accuracies.

Appendices "Exponential Mechanism for Private Selection" and "Implementation of private local
clustering" of the paper. The scores are private; only the chosen index may leave the client.
"""

import numpy as np
import tensorflow as tf


def select(
    scores: tf.Tensor, records: int | tf.Tensor, epsilon_select: float | tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Draw the index of one candidate, with the probabilities that `probabilities` returns.

    Args:
        scores: float64[M], the accuracy of each candidate on all N training records. Not float32:
            its rounding (6e-8) is more than the room between 1/N and the sensitivity 1/(N-1).
        records: N.
        epsilon_select: the pure-DP epsilon of this selection; infinity means the plain argmax.
        seed: int32[2], used for nothing else (`randomness.stream_seed`).

    Returns:
        int32, the chosen index.
    """
    scores = tf.convert_to_tensor(scores, tf.float64)
    records = tf.cast(records, tf.float64)
    epsilon_select = tf.convert_to_tensor(epsilon_select, tf.float64)
    sensitivity = 1.0 / (records - 1.0)
    gumbel_scale = 2.0 * sensitivity / epsilon_select
    uniform = tf.random.stateless_uniform(tf.shape(scores), seed, dtype=tf.float64, alg="philox")
    return tf.argmax(scores + gumbel_scale * _gumbel(uniform), output_type=tf.int32)


def _gumbel(uniform: tf.Tensor) -> tf.Tensor:
    """Standard Gumbel noise; it ends at -3.6 and 36.7, beyond which lies less than 2^-52."""
    # The generator returns multiples of 2^-52 from 0 to 1 - 2^-52. Half a step more is exact in
    # float64, and is neither 0 nor 1, where the logarithms are infinite.
    return -tf.math.log(-tf.math.log(uniform + 2.0**-53))


def probabilities(scores: np.ndarray, records: int, epsilon_select: float) -> np.ndarray:
    """Return the probability of each candidate: exp(epsilon_select * score / (2 * sensitivity))."""
    gaps = np.asarray(scores, np.float64) - np.max(scores)
    if epsilon_select == np.inf:
        weights = np.zeros_like(gaps)
        weights[np.argmax(gaps)] = 1.0
    else:
        weights = np.exp(gaps * epsilon_select * (records - 1) / 2)
    return weights / np.sum(weights)
