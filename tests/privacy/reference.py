"""Clipped gradient sums the slow and obvious way: Keras, `tape.jacobian`, float64 NumPy."""

import numpy as np
import tensorflow as tf


def example_gradients(model, inputs, labels):
    """The gradient of every example as a row: float64[examples, p]."""
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.keras.losses.sparse_categorical_crossentropy(
            labels, model(inputs), from_logits=True
        )
    jacobians = tape.jacobian(losses, model.trainable_weights, experimental_use_pfor=False)
    return np.concatenate(
        [np.reshape(one, (len(inputs), -1)) for one in jacobians], axis=1, dtype=np.float64
    )


def clipped_sum(gradients, weights, clip_norm):
    norms = np.linalg.norm(gradients, axis=1)
    return (weights * np.minimum(1, clip_norm / norms)) @ gradients


def relative_error(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def random_batch(model, examples, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(examples, *model.input_shape[1:])).astype(np.float32)
    return inputs, rng.integers(0, model.output_shape[-1], examples).astype(np.int32)
