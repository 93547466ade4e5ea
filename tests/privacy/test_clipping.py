"""Every engine gives the sum of clipped per-example gradients, by value."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.models.resnet import resnet18
from rdpcfl_tff.privacy.clipping import (
    Batch,
    FastEngine,
    UnclippedEngine,
    VectorizedMapEngine,
    fast_engine,
)
from tests.models.example_models import SUPPORTED, UNSUPPORTED
from tests.privacy.reference import clipped_sum, example_gradients, random_batch, relative_error

EXAMPLES = 6


def gradient_sum(engine, inputs, labels, weights, clip_norm):
    return tf.function(engine.gradient_sum)(
        tf.constant(engine.model.initial_parameters),
        Batch(tf.constant(inputs), tf.constant(labels), tf.constant(weights, tf.float32)),
        tf.constant(clip_norm, tf.float32),
    ).numpy()


def clip_norms(gradients):
    """Clip norms that clip all examples, some of them, and none."""
    norms = np.linalg.norm(gradients, axis=1)
    return {"all": norms.min() / 2, "some": np.median(norms), "none": norms.max() * 2}


@pytest.mark.parametrize("clipped", ["all", "some", "none"])
@pytest.mark.parametrize("build", [*SUPPORTED, cnn])
def test_fast_engine_clips_every_example(build, clipped):
    model = build()
    inputs, labels = random_batch(model, EXAMPLES)
    gradients = example_gradients(model, inputs, labels)
    clip_norm = clip_norms(gradients)[clipped]
    weights = np.array([1, 1, 0, 1, 1, 0])

    engine = fast_engine(FunctionalModel(model))
    assert isinstance(engine, FastEngine)
    actual = gradient_sum(engine, inputs, labels, weights, clip_norm)
    assert relative_error(actual, clipped_sum(gradients, weights, clip_norm)) <= 1e-5


@pytest.mark.parametrize("build", UNSUPPORTED)
def test_a_model_without_fast_rules_falls_back_with_one_log_line(build, caplog):
    model = build()
    inputs, labels = random_batch(model, EXAMPLES)
    gradients = example_gradients(model, inputs, labels)
    clip_norm = clip_norms(gradients)["some"]
    weights = np.array([1, 1, 0, 1, 1, 0])

    with caplog.at_level(logging.INFO, logger="rdpcfl_tff"):
        engine = fast_engine(FunctionalModel(model))
    assert isinstance(engine, VectorizedMapEngine)
    assert len(caplog.records) == 1
    assert "tf.vectorized_map" in caplog.text
    actual = gradient_sum(engine, inputs, labels, weights, clip_norm)
    assert relative_error(actual, clipped_sum(gradients, weights, clip_norm)) <= 1e-5


def test_vectorized_map_engine_on_the_cnn():
    model = cnn()
    inputs, labels = random_batch(model, EXAMPLES)
    gradients = example_gradients(model, inputs, labels)
    clip_norm = clip_norms(gradients)["some"]
    engine = VectorizedMapEngine(FunctionalModel(model))
    actual = gradient_sum(engine, inputs, labels, np.ones(EXAMPLES), clip_norm)
    expected = clipped_sum(gradients, np.ones(EXAMPLES), clip_norm)
    assert relative_error(actual, expected) <= 1e-5


def test_pooling_ties():
    """On flat images whole windows are tied; only one of the tied may get the gradient."""
    model = cnn(seed=4)
    labels = np.arange(4, dtype=np.int32)
    inputs = np.full((4, 28, 28, 1), [[[[0.0]]], [[[1.0]]], [[[-1.0]]], [[[0.5]]]], np.float32)
    gradients = example_gradients(model, inputs, labels)
    clip_norm = clip_norms(gradients)["some"]
    actual = gradient_sum(FastEngine(FunctionalModel(model)), inputs, labels, np.ones(4), clip_norm)
    assert relative_error(actual, clipped_sum(gradients, np.ones(4), clip_norm)) <= 1e-5


def test_resnet18():
    model = resnet18()
    functional = FunctionalModel(model)
    inputs, labels = random_batch(model, 8)
    clip_norm = 60.0
    engine = FastEngine(functional)
    one_of_the_batch = tf.function(engine.gradient_sum)

    errors, norms = [], []
    for index in range(8):
        with tf.GradientTape() as tape:
            loss = tf.keras.losses.sparse_categorical_crossentropy(
                labels[[index]], model(inputs[[index]]), from_logits=True
            )
        gradient = functional.flatten(tape.gradient(loss, model.trainable_weights))
        gradient = gradient.numpy().astype(np.float64)[np.newaxis]
        norms.append(np.linalg.norm(gradient))
        actual = one_of_the_batch(
            tf.constant(functional.initial_parameters),
            Batch(tf.constant(inputs), tf.constant(labels), tf.one_hot(index, 8)),
            tf.constant(clip_norm),
        )
        errors.append(relative_error(actual.numpy(), clipped_sum(gradient, np.ones(1), clip_norm)))
    assert min(norms) < clip_norm < max(norms)
    # Rounding may put a ReLU on the other side of its kink: about one example in a hundred.
    assert np.sort(errors)[-2] <= 1e-5


def test_unclipped_engine_is_the_plain_weighted_sum():
    model = cnn()
    inputs, labels = random_batch(model, EXAMPLES)
    weights = np.array([1, 1, 0, 1, 1, 0])
    engine = UnclippedEngine(FunctionalModel(model))
    actual = gradient_sum(engine, inputs, labels, weights, clip_norm=1e-3)
    assert relative_error(actual, weights @ example_gradients(model, inputs, labels)) <= 1e-5


def test_engines_work_eagerly_too():
    model = FunctionalModel(cnn())
    inputs, labels = random_batch(cnn(), EXAMPLES)
    for engine in (FastEngine(model), UnclippedEngine(model)):
        batch = Batch(inputs, labels, np.ones(EXAMPLES, np.float32))
        eager = engine.gradient_sum(tf.constant(model.initial_parameters), batch, np.float32(5.0))
        assert relative_error(eager.numpy(), gradient_sum(engine, *batch, 5.0)) <= 1e-5


def test_an_example_with_no_gradient_adds_nothing():
    """Saturated logits: the gradient is exactly zero, and 0/0 must not come up."""
    images = tf.keras.Input((2,))
    model = tf.keras.Model(images, tf.keras.layers.Dense(2, use_bias=False)(images))
    model.set_weights([np.eye(2, dtype=np.float32)])
    inputs = np.array([[1e4, -1e4], [1.0, 2.0]], np.float32)
    labels = np.array([0, 0], np.int32)
    engine = FastEngine(FunctionalModel(model))
    actual = gradient_sum(engine, inputs, labels, np.ones(2), clip_norm=0.5)
    assert np.linalg.norm(actual) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("poison", [1e30, np.inf, np.nan])
@pytest.mark.parametrize("engine_class", [FastEngine, VectorizedMapEngine])
@pytest.mark.parametrize("build", [*SUPPORTED, cnn])
def test_no_example_whatever_it_holds_moves_the_sum_by_more_than_the_clip_norm(
    build, engine_class, poison
):
    model = build()
    inputs, labels = random_batch(model, EXAMPLES)
    engine = engine_class(FunctionalModel(model))
    without = gradient_sum(engine, inputs, labels, [0, 1, 1, 0, 1, 1], clip_norm=0.1)
    inputs[[0, 3]] = poison
    poisoned = gradient_sum(engine, inputs, labels, [1] * EXAMPLES, clip_norm=0.1)
    moved = np.linalg.norm(poisoned - without)
    assert moved <= 2 * 0.1 * (1 + 1e-5)
    if np.isnan(poison):
        assert moved <= 1e-6, "what is no number counts as nothing"


def test_a_pull_is_clipped_together_with_each_gradient():
    model = SUPPORTED[0]()
    inputs, labels = random_batch(model, EXAMPLES)
    gradients = example_gradients(model, inputs, labels)
    functional = FunctionalModel(model)
    pull = np.random.default_rng(1).normal(size=functional.num_parameters).astype(np.float32)
    engine = VectorizedMapEngine(functional, lambda parameters: tf.constant(pull))
    weights = np.array([1, 1, 0, 1, 1, 0])
    clip_norm = clip_norms(gradients + pull)["some"]
    actual = gradient_sum(engine, inputs, labels, weights, clip_norm)
    assert relative_error(actual, clipped_sum(gradients + pull, weights, clip_norm)) <= 1e-5
