"""A Keras model and its functional form are the same function."""

import numpy as np
import pytest
import tensorflow as tf

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.models import operations
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel, check_examples_are_independent
from rdpcfl_tff.models.resnet import resnet18
from tests.models.example_models import SUPPORTED, UNSUPPORTED

layers = tf.keras.layers


@pytest.mark.parametrize("build", [*SUPPORTED, *UNSUPPORTED, cnn, resnet18])
def test_same_logits_as_keras(build):
    model = build()
    functional = FunctionalModel(model)
    inputs = np.random.default_rng(0).normal(size=(5, *model.input_shape[1:])).astype(np.float32)

    # Parameters that are not the Keras model's own show that no variable is read.
    parameters = functional.initial_parameters * 1.1
    logits = tf.function(functional.logits)(tf.constant(parameters), tf.constant(inputs))
    for weight, value in zip(
        model.trainable_weights, functional.unflatten(tf.constant(parameters)), strict=True
    ):
        weight.assign(value)
    np.testing.assert_allclose(logits, model(inputs), rtol=1e-4, atol=1e-5)


def test_flat_vector_is_in_keras_order():
    model = cnn(seed=5)
    functional = FunctionalModel(model)
    assert functional.num_parameters == 28_938
    assert functional.initial_parameters.dtype == np.float32
    np.testing.assert_array_equal(
        functional.initial_parameters, np.concatenate([w.ravel() for w in model.get_weights()])
    )
    weights = functional.unflatten(tf.constant(functional.initial_parameters))
    for one, other in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(functional.flatten(weights), functional.initial_parameters)


def test_graph_has_no_variable():
    functional = FunctionalModel(cnn())
    graph = tf.function(functional.logits).get_concrete_function(
        tf.TensorSpec([28_938]), tf.TensorSpec([None, 28, 28, 1])
    )
    assert not graph.captured_inputs


def test_pooling_comes_first():
    def kind(operation):
        return type(getattr(operation, "layer", operation)).__name__

    kinds = [kind(instruction.operation) for instruction in FunctionalModel(cnn()).program]
    block = ["Convolution", "MaxPooling2D", "Bias", "Activation"]
    assert kinds == [*block, *block, "Flatten", "Dense", "Bias"]


def test_pooling_stays_where_a_second_layer_needs_what_comes_before():
    images = tf.keras.Input((4, 4, 2))
    values = layers.Conv2D(2, 3, padding="same", activation="relu")(images)
    values = layers.Concatenate()(
        [layers.Flatten()(values), layers.Flatten()(layers.MaxPooling2D(2)(values))]
    )
    model = tf.keras.Model(images, layers.Dense(3)(values))
    inputs = np.random.default_rng(0).normal(size=(5, 4, 4, 2)).astype(np.float32)
    functional = FunctionalModel(model)
    np.testing.assert_allclose(
        functional.logits(functional.initial_parameters, inputs),
        model(inputs),
        rtol=1e-4,
        atol=1e-6,
    )


def test_dead_taps_of_resnet18_on_cifar_images():
    convolutions = [
        instruction.operation
        for instruction in FunctionalModel(resnet18()).program
        if isinstance(instruction.operation, operations.Convolution)
    ]
    dead = sum(np.prod(one.kernel_shape) - np.prod(one.live_shape) for one in convolutions)
    # Three 3x3 kernels of 512 x 512 keep their centre, one of 256 x 512 keeps 2x2 taps.
    assert dead == 3 * 8 * 512 * 512 + 5 * 256 * 512


def refused(model):
    with pytest.raises(UserError) as error:
        FunctionalModel(model)
    return str(error.value)


def test_batch_norm_is_refused_by_name():
    images = tf.keras.Input((4,))
    model = tf.keras.Model(images, layers.BatchNormalization(name="mixer")(images))
    with pytest.raises(UserError, match=r"'mixer' \(BatchNormalization\).*GroupNormalization"):
        check_examples_are_independent(model)


def test_batch_norm_inside_a_nested_model_is_refused():
    inner = tf.keras.Sequential([layers.Dense(3), layers.BatchNormalization(name="deep")])
    images = tf.keras.Input((4,))
    model = tf.keras.Model(images, layers.Dense(2)(inner(images)))
    with pytest.raises(UserError, match="'deep'"):
        check_examples_are_independent(model)


def test_a_layer_of_the_users_own_that_mixes_examples_is_refused():
    class Centred(layers.Layer):
        def call(self, inputs):
            return inputs - tf.reduce_mean(inputs, axis=0)

    images = tf.keras.Input((4,))
    assert "mixes examples" in refused(tf.keras.Model(images, Centred()(layers.Dense(3)(images))))


def test_what_would_silently_have_no_effect_is_refused():
    images = tf.keras.Input((4,))
    assert "'drop'" in refused(
        tf.keras.Model(images, layers.Dropout(0.5, name="drop")(layers.Dense(3)(images)))
    )
    assert "regulariser" in refused(
        tf.keras.Model(images, layers.Dense(3, kernel_regularizer="l2")(images))
    )
    frozen = tf.keras.Model(images, layers.Dense(3, name="frozen")(images))
    frozen.get_layer("frozen").trainable = False
    assert "not trainable" in refused(frozen)
    assert "one input" in refused(
        tf.keras.Model(images, [layers.Dense(3)(images), layers.Dense(2)(images)])
    )


def test_a_layer_with_several_outputs_is_refused():
    class Halves(layers.Layer):
        def call(self, inputs):
            return tf.split(inputs, 2, axis=1)

    images = tf.keras.Input((4,))
    first, second = Halves(name="halves")(images)
    assert "'halves'" in refused(tf.keras.Model(images, layers.Dense(3)(first * second)))


def test_a_layer_that_hides_its_weights_is_refused():
    class Hiding(layers.Layer):
        def build(self, input_shape):
            self.kernels = [self.add_weight("kernel", (input_shape[-1], 3))]

        def call(self, inputs):
            return inputs @ self.kernels[0]

    images = tf.keras.Input((4,))
    functional = FunctionalModel(tf.keras.Model(images, Hiding(name="hiding")(images)))
    with pytest.raises(UserError, match="'hiding'"):
        functional.logits(functional.initial_parameters, np.zeros((2, 4), np.float32))
