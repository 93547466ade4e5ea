"""The paper's CNN for MNIST and Fashion-MNIST (appendix, model table): 28,938 parameters.

Two 5x5 convolutions with 16 and 32 filters, each with ReLU and 2x2 max-pooling, and a dense layer.
The logits have no ReLU: the paper's table shows one, but it would stop the learning.
"""

import tensorflow as tf

from rdpcfl_tff.models.initialisation import layer_seeds, uniform_fan_in


def cnn(
    input_shape: tuple[int, int, int] = (28, 28, 1), num_classes: int = 10, seed: int = 0
) -> tf.keras.Model:
    """Build the CNN with initial weights drawn from `seed`."""
    layers = tf.keras.layers
    seeds = layer_seeds(seed)

    images = tf.keras.Input(input_shape, name="images")
    values = images
    for index, filters in enumerate((16, 32), start=1):
        fan_in = 5 * 5 * values.shape[-1]
        values = layers.Conv2D(
            filters,
            kernel_size=5,
            padding="same",
            activation="relu",
            kernel_initializer=uniform_fan_in(fan_in, next(seeds)),
            bias_initializer=uniform_fan_in(fan_in, next(seeds)),
            name=f"conv{index}",
        )(values)
        values = layers.MaxPooling2D(2, name=f"pool{index}")(values)
    values = layers.Flatten(name="flatten")(values)
    logits = layers.Dense(
        num_classes,
        kernel_initializer=uniform_fan_in(values.shape[-1], next(seeds)),
        bias_initializer=uniform_fan_in(values.shape[-1], next(seeds)),
        name="logits",
    )(values)
    return tf.keras.Model(images, logits, name="cnn")
