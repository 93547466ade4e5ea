"""Small models that between them have every kind of layer that per-example clipping supports."""

import tensorflow as tf

layers = tf.keras.layers


def dense():
    return _model((6,), layers.Dense(5, activation="tanh"), layers.Dense(3, use_bias=False))


def dense_at_many_positions():
    return _model((7, 4), layers.Dense(5, activation="relu"), layers.Flatten(), layers.Dense(3))


def convolutions_with_formed_gradients():
    return _model(
        (12, 11, 2),
        layers.Conv2D(4, 5, padding="same", activation="relu"),
        layers.Conv2D(6, 3, padding="valid"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(3),
    )


def convolutions_with_ghost_norms():
    return _model(
        (6, 6, 5),
        layers.Conv2D(4, 3, padding="same", strides=2, activation="elu"),
        layers.Conv2D(7, 1),
        layers.Conv2D(5, (3, 2), padding="valid"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
    )


def convolutions_with_strides():
    return _model(
        (15, 14, 6),
        layers.Conv2D(8, 3, strides=(2, 1), padding="valid"),
        layers.Conv2D(5, 1, strides=2, padding="same", use_bias=False),
        layers.Conv2D(5, 4, strides=(1, 3), padding="same"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(3),
    )


def convolutions_on_tiny_images():
    return _model(
        (2, 2, 6),
        layers.Conv2D(5, 5, padding="same"),
        layers.Conv2D(6, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2D(7, 3, padding="same"),
        layers.Flatten(),
        layers.Dense(3),
    )


def bias_and_relu_before_max_pooling():
    return _model(
        (8, 8, 3),
        layers.Conv2D(4, 3, padding="same"),
        layers.Activation("relu"),
        layers.MaxPooling2D(3, strides=2, padding="same"),
        layers.Conv2D(5, 3, padding="same"),
        layers.ReLU(),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(3),
    )


def group_norm_and_residual():
    images = tf.keras.Input((9, 9, 4))
    values = layers.Conv2D(6, 3, padding="same", use_bias=False)(images)
    values = layers.GroupNormalization(2, gamma_initializer="normal")(values)
    shortcut = values = layers.ReLU()(values)
    values = layers.ZeroPadding2D(1)(values)
    values = layers.Conv2D(6, 3)(values)
    values = layers.GroupNormalization(3, center=False, epsilon=1e-5)(values)
    values = layers.Add()([values, shortcut])
    values = layers.GroupNormalization(1, scale=False)(layers.Reshape((81, 6))(values))
    values = layers.LeakyReLU()(values) + 0.5
    return _randomised(tf.keras.Model(images, layers.Dense(3)(layers.Flatten()(values))))


def nested():
    inner = _model((6, 6, 2), layers.Conv2D(3, 3, activation="relu"), layers.MaxPooling2D(2))
    images = tf.keras.Input((6, 6, 2))
    values = tf.keras.Sequential([layers.Flatten(), layers.Dense(4)])(inner(images))
    return _randomised(tf.keras.Model(images, layers.Dense(3)(values)))


SUPPORTED = [
    dense,
    dense_at_many_positions,
    convolutions_with_formed_gradients,
    convolutions_with_ghost_norms,
    convolutions_with_strides,
    convolutions_on_tiny_images,
    bias_and_relu_before_max_pooling,
    group_norm_and_residual,
    nested,
]


def shared_layer():
    images = tf.keras.Input((6,))
    layer = layers.Dense(6, activation="tanh")
    return _randomised(tf.keras.Model(images, layers.Dense(3)(layer(layer(images)))))


def shared_model():
    inner = _model((5,), layers.Dense(5, activation="tanh"))
    images = tf.keras.Input((5,))
    return _randomised(tf.keras.Model(images, layers.Dense(3)(inner(inner(images)))))


def layers_without_rules():
    return _model(
        (6, 6, 2),
        layers.DepthwiseConv2D(3),
        layers.Conv2D(4, 3, dilation_rate=2, padding="same"),
        layers.LayerNormalization(),
        layers.PReLU(),
        layers.Flatten(),
        layers.Dense(3),
    )


UNSUPPORTED = [shared_layer, shared_model, layers_without_rules]


def _model(input_shape, *stack):
    images = values = tf.keras.Input(input_shape)
    for layer in stack:
        values = layer(values)
    return _randomised(tf.keras.Model(images, values))


def _randomised(model):
    """Biases and scales must not all be alike, or mistakes in their order would not show."""
    generator = tf.random.Generator.from_seed(1)
    for weight in model.trainable_weights:
        weight.assign_add(0.1 * generator.normal(weight.shape))
    return model
