"""Initial weights from one seed: the same bits for the same seed, a stream of its own per layer.

The distributions are PyTorch's defaults, which the paper's experiments used.
Nothing here depends on data.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf


def layer_seeds(seed: int) -> Iterator[int]:
    """Endless independent seeds, one to be drawn for each initialiser of a model."""
    generator = np.random.default_rng(seed)
    while True:
        yield int(generator.integers(2**31 - 1))


def uniform_fan_in(fan_in: int, seed: int) -> tf.keras.initializers.Initializer:
    """Uniform on ±1/sqrt(fan_in): PyTorch's default for weights and biases alike."""
    limit = fan_in**-0.5
    return tf.keras.initializers.RandomUniform(-limit, limit, seed=seed)


def he_normal_fan_out(seed: int) -> tf.keras.initializers.Initializer:
    """Normal with variance 2/fan_out: what ResNets start from."""
    return tf.keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal", seed=seed)
