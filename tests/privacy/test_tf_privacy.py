"""TF Privacy as the judge: of the fast engine by its optimizer, of our layers by its slow way."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_privacy.privacy.fast_gradient_clipping import clip_grads
from tensorflow_privacy.privacy.keras_models import dp_keras_model

from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy.clipping import FastEngine
from rdpcfl_tff.privacy.dp_sgd import LocalTask, train
from rdpcfl_tff.privacy.tf_privacy import TFPrivacyEngine, layer_registry
from tests.models import example_models
from tests.privacy.reference import example_gradients, random_batch, relative_error

REGISTERED = [
    example_models.convolutions_with_formed_gradients,
    example_models.convolutions_with_ghost_norms,
    example_models.convolutions_with_strides,
    example_models.convolutions_on_tiny_images,
    example_models.group_norm_and_residual,
]


@pytest.mark.parametrize("build", [cnn, example_models.group_norm_and_residual])
def test_both_engines_give_the_same_update(build):
    """The same seed draws the same batches and noise, so that only the clipping could differ."""
    model = FunctionalModel(build())
    shape = build().input_shape[1:]
    rng = np.random.default_rng(0)
    images = tf.constant(rng.integers(0, 256, (40, *shape), dtype=np.uint8))
    labels = tf.constant(rng.integers(0, 3, 40).astype(np.int32))
    task = LocalTask(
        records=tf.constant(40),
        batch_size=tf.constant(12),
        steps=tf.constant(3),
        learning_rate=tf.constant(0.1),
        clip_norm=tf.constant(2.0),
        noise_multiplier=tf.constant(0.5),
        seed=tf.constant([1, 2]),
    )

    def update(engine):
        return tf.function(train)(
            engine,
            tf.constant(model.initial_parameters),
            images,
            labels,
            task,
            lambda pixels: tf.cast(pixels, tf.float32) / 255.0,
            private=True,
        ).numpy()

    fast, tf_privacy = update(FastEngine(model)), update(TFPrivacyEngine(model))
    assert relative_error(fast, tf_privacy) <= 1e-5
    np.testing.assert_allclose(fast, tf_privacy, atol=1e-5 * np.abs(fast).max())


def compiled(model):
    model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("build", REGISTERED)
def test_registered_layers_give_the_norm_of_each_example(build):
    model = compiled(build())
    inputs, labels = random_batch(model, 6)
    norms = clip_grads.compute_gradient_norms(model, layer_registry(), inputs, labels)
    expected = np.linalg.norm(example_gradients(model, inputs, labels), axis=1)
    np.testing.assert_allclose(norms, expected, rtol=1e-5)


@pytest.mark.parametrize("build", REGISTERED)
def test_registered_layers_give_the_norm_of_each_microbatch(build):
    model = compiled(build())
    inputs, labels = random_batch(model, 6)
    norms = clip_grads.compute_gradient_norms(
        model, layer_registry(), inputs, labels, num_microbatches=3
    )
    gradients = example_gradients(model, inputs, labels).reshape(3, 2, -1).mean(axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(gradients, axis=1), rtol=1e-5)


def test_dp_model_trains_as_it_does_the_slow_way():
    inputs, labels = random_batch(cnn(), 8)

    def trained(registry):
        plain = cnn()
        model = dp_keras_model.DPModel(
            l2_norm_clip=3.0,
            noise_multiplier=0.0,
            layer_registry=registry,
            inputs=plain.inputs,
            outputs=plain.outputs,
        )
        model.compile(
            tf.keras.optimizers.SGD(0.1),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        before = np.concatenate([w.ravel() for w in model.get_weights()])
        model.fit(inputs, labels, batch_size=8, epochs=1, verbose=0)
        uses_registry = model._enable_fast_peg_computation
        return uses_registry, np.concatenate([w.ravel() for w in model.get_weights()]) - before

    (fast, with_registry), (slow, without) = trained(layer_registry()), trained(None)
    assert (fast, slow) == (True, False)
    assert relative_error(with_registry, without) <= 1e-4


def test_layers_that_the_rules_do_not_cover_are_refused():
    model = compiled(example_models.layers_without_rules())
    inputs, labels = random_batch(model, 2)
    with pytest.raises(NotImplementedError):
        clip_grads.compute_gradient_norms(model, layer_registry(), inputs, labels)

    images = tf.keras.Input((6, 6, 2))
    values = tf.keras.layers.Conv2D(3, 3, dilation_rate=2, name="dilated")(images)
    model = compiled(tf.keras.Model(images, tf.keras.layers.GlobalAveragePooling2D()(values)))
    with pytest.raises(NotImplementedError, match="'dilated'"):
        clip_grads.compute_gradient_norms(model, layer_registry(), inputs, labels)
