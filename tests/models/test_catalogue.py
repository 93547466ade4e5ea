"""Models by name, and models of one's own."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from rdpcfl_tff import config
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.models import catalogue
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping


def own_model(input_shape, num_classes, seed):
    inputs = tf.keras.Input(input_shape)
    start = tf.keras.initializers.GlorotUniform(seed)
    return tf.keras.Model(
        inputs, tf.keras.layers.Dense(num_classes, kernel_initializer=start)(inputs)
    )


def no_model(input_shape, num_classes, seed):
    return "a model"


def test_the_names_are_those_of_the_config():
    assert set(config.MODELS) <= set(catalogue.MODELS)


def test_the_dense_network():
    model = catalogue.build_model("mlp", (5, 2), 3, seed=4)
    assert model.count_params() == 10 * 64 + 64 + 64 * 3 + 3
    assert isinstance(clipping.fast_engine(FunctionalModel(model)), clipping.FastEngine)
    again = catalogue.build_model("mlp", (5, 2), 3, seed=4)
    other = catalogue.build_model("mlp", (5, 2), 3, seed=5)
    for one, same, different in zip(
        model.get_weights(), again.get_weights(), other.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, different)


def test_a_function_of_ones_own_by_name():
    name = f"{__name__}:own_model"
    assert sys.modules[__name__].own_model is own_model
    model = catalogue.build_model(name, (7,), 3, seed=1)
    assert (model.input_shape, model.output_shape) == ((None, 7), (None, 3))


def test_a_model_that_is_handed_over_is_copied_whole():
    given = own_model((7,), 3, seed=1)
    name = catalogue.register(given)
    assert ":" in name
    built = catalogue.build_model(name, (7,), 3, seed=99)
    assert built is not given
    for weight, expected in zip(built.get_weights(), given.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    other = own_model((7,), 3, seed=2)
    other._name = given.name
    assert catalogue.register(other) != name, "other weights are another model"


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (7,), "is for images"),
        ("cnn", (2, 2, 1), "cannot be built"),
        (f"{__name__}:nothing", (7,), "has no function 'nothing'"),
        ("no_such_module:build", (7,), "No module named"),
        (f"{__name__}:no_model", (7,), "must give a Keras model"),
        ("builtins:len", (7,), "cannot be built"),
    ],
)
def test_what_is_no_model(name, shape, message):
    with pytest.raises(UserError, match=message):
        catalogue.build_model(name, shape, 3, seed=0)


def test_a_model_of_another_shape_is_refused():
    given = catalogue.register(own_model((7,), 3, seed=1))
    with pytest.raises(UserError, match="the data needs"):
        catalogue.build_model(given, (8,), 3, seed=0)
    with pytest.raises(UserError, match="the data needs"):
        catalogue.build_model(given, (7,), 4, seed=0)
