"""The paper's ResNet-18 for CIFAR-10 (appendix, model table): 11,181,642 parameters.

GroupNorm with 2 groups stands where ResNet has BatchNorm, which mixes examples and so cannot be
private per example. The stem is ImageNet's (7x7/2 convolution, 3x3/2 max-pooling).
"""

from collections.abc import Iterator

import tensorflow as tf

from rdpcfl_tff.models.initialisation import he_normal_fan_out, layer_seeds, uniform_fan_in

GROUPS = 2
STAGES = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


def resnet18(
    input_shape: tuple[int, int, int] = (32, 32, 3), num_classes: int = 10, seed: int = 0
) -> tf.keras.Model:
    """Build ResNet-18 with initial weights drawn from `seed`."""
    layers = tf.keras.layers
    seeds = layer_seeds(seed)

    images = tf.keras.Input(input_shape, name="images")
    values = _convolution(images, 64, size=7, stride=2, seeds=seeds, name="stem")
    values = layers.ReLU(name="stem_relu")(values)
    values = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(values)
    for stage, filters in enumerate(STAGES, start=1):
        for block in range(1, BLOCKS_PER_STAGE + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            values = _basic_block(values, filters, stride, seeds, name=f"stage{stage}_{block}")
    values = layers.GlobalAveragePooling2D(name="mean")(values)
    logits = layers.Dense(
        num_classes,
        kernel_initializer=uniform_fan_in(values.shape[-1], next(seeds)),
        bias_initializer=uniform_fan_in(values.shape[-1], next(seeds)),
        name="logits",
    )(values)
    return tf.keras.Model(images, logits, name="resnet18")


def _basic_block(
    values: tf.Tensor, filters: int, stride: int, seeds: Iterator[int], name: str
) -> tf.Tensor:
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the size changes."""
    layers = tf.keras.layers
    shortcut = values
    values = _convolution(values, filters, size=3, stride=stride, seeds=seeds, name=f"{name}_a")
    values = layers.ReLU(name=f"{name}_a_relu")(values)
    values = _convolution(values, filters, size=3, stride=1, seeds=seeds, name=f"{name}_b")
    if stride > 1:
        shortcut = _convolution(
            shortcut, filters, size=1, stride=stride, seeds=seeds, name=f"{name}_shortcut"
        )
    values = layers.Add(name=f"{name}_add")([values, shortcut])
    return layers.ReLU(name=f"{name}_relu")(values)


def _convolution(
    values: tf.Tensor, filters: int, size: int, stride: int, seeds: Iterator[int], name: str
) -> tf.Tensor:
    layers = tf.keras.layers
    values = layers.Conv2D(
        filters,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer=he_normal_fan_out(next(seeds)),
        name=name,
    )(values)
    return layers.GroupNormalization(GROUPS, epsilon=1e-5, name=f"{name}_norm")(values)
