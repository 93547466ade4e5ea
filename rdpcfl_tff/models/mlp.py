"""A small dense network for records that are no images: one hidden layer of 64 ReLU units.

Not in the paper. Small, because the noise of DP-SGD grows with the number of parameters.
"""

import math

import tensorflow as tf

from rdpcfl_tff.models.initialisation import layer_seeds, uniform_fan_in

HIDDEN_UNITS = 64


def mlp(input_shape: tuple[int, ...], num_classes: int, seed: int = 0) -> tf.keras.Model:
    """Build the network with initial weights drawn from `seed`."""
    seeds = layer_seeds(seed)

    def dense(units: int, fan_in: int, **settings: str) -> tf.keras.layers.Layer:
        return tf.keras.layers.Dense(
            units,
            kernel_initializer=uniform_fan_in(fan_in, next(seeds)),
            bias_initializer=uniform_fan_in(fan_in, next(seeds)),
            **settings,
        )

    features = tf.keras.Input(input_shape, name="features")
    values = tf.keras.layers.Flatten(name="flatten")(features)
    values = dense(HIDDEN_UNITS, math.prod(input_shape), activation="relu", name="hidden")(values)
    logits = dense(num_classes, HIDDEN_UNITS, name="logits")(values)
    return tf.keras.Model(features, logits, name="mlp")
