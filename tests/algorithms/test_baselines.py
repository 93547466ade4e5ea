"""The baselines by value, on a real federation of digits without privacy noise."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf

from rdpcfl_tff.algorithms.base import LocalTraining, State
from rdpcfl_tff.algorithms.global_model import Global
from rdpcfl_tff.algorithms.ifca import IFCA
from rdpcfl_tff.algorithms.local import Local
from rdpcfl_tff.algorithms.mr_mtl import MRMTL
from rdpcfl_tff.algorithms.odpcfl import ODPCFL
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.functional import FunctionalModel, losses
from rdpcfl_tff.privacy import accounting, clipping, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan

LEARNING_RATE = 0.1
RECORDS = 48
FULL_BATCH = LocalTraining(rounds=3, local_epochs=1, batch_size=RECORDS)


def smooth_model(seed: int) -> FunctionalModel:
    """Without ReLU and max-pooling: at their kinks rounding, so the CPU, decides on a gradient."""
    tf.keras.utils.set_random_seed(seed)
    layers = tf.keras.layers
    return FunctionalModel(
        tf.keras.Sequential(
            [
                layers.Conv2D(8, 5, activation="tanh", input_shape=(28, 28, 1)),
                layers.AveragePooling2D(2),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
    )


@pytest.fixture(scope="module")
def model():
    return smooth_model(seed=2)


def federation(store, model, algorithm, epsilon=math.inf):
    schedules = [algorithm.schedule(size) for size in store.client_sizes["train"]]
    return Federation(
        silos=store.client_directories,
        records=RecordFormat.of(store),
        engine=clipping.fast_engine(model),
        plan=PrivacyPlan.calibrate(schedules, epsilon, 1e-3),
        learning_rate=LEARNING_RATE,
        clip_norm=1.0,
        key=randomness.run_key(0),
    )


def run(algorithm, clients, rounds):
    state = algorithm.first_round(clients)
    while state.round_number < rounds:
        state = algorithm.next_round(state, clients)
    return state


def gradient_descent(store, model, clients, rounds):
    """Plain gradient descent on the records of these clients together, in this process."""
    parts = [store.read(client, "train") for client in clients]
    images = RecordFormat.of(store).scale(np.concatenate([images for images, _ in parts]))
    labels = np.concatenate([labels for _, labels in parts])
    theta = tf.constant(model.initial_parameters)
    for _ in range(rounds):
        with tf.GradientTape() as tape:
            tape.watch(theta)
            loss = tf.reduce_mean(losses(model.logits(theta, images), labels))
        theta -= LEARNING_RATE * tape.gradient(loss, theta)
    return theta.numpy()


def test_global_is_gradient_descent_on_the_union(worker, digits_store, model):
    algorithm = Global(FULL_BATCH)
    state = run(algorithm, federation(digits_store, model, algorithm), rounds=3)
    expected = gradient_descent(digits_store, model, (0, 1, 2), rounds=3)
    np.testing.assert_allclose(state.models[0], expected, atol=1e-6)


def test_local_is_gradient_descent_of_each_client_alone(worker, digits_store, model):
    algorithm = Local(FULL_BATCH)
    state = run(algorithm, federation(digits_store, model, algorithm), rounds=2)
    assert state.assignment == (0, 1, 2)
    for client in range(3):
        expected = gradient_descent(digits_store, model, (client,), rounds=2)
        np.testing.assert_allclose(state.models[client], expected, atol=1e-6)


def test_mr_mtl_without_a_pull_is_local_bit_for_bit_under_noise(worker, digits_store, model):
    training = LocalTraining(rounds=2, local_epochs=1, batch_size=16)
    results = [
        run(algorithm, federation(digits_store, model, algorithm, epsilon=5.0), rounds=2).models
        for algorithm in (MRMTL(training, pull=0.0), Local(training))
    ]
    np.testing.assert_array_equal(*results)


def test_mr_mtl_pulls_every_step_to_the_mean(worker, digits_store, model):
    """One step by hand: theta - eta (gradient + lambda (theta - mean))."""
    clients = federation(digits_store, model, Local(FULL_BATCH))
    generator = np.random.default_rng(0)
    models = model.initial_parameters + generator.normal(0, 0.01, (3, model.num_parameters)).astype(
        np.float32
    )
    state = State(1, "personal models", models, (0, 1, 2))
    free = MRMTL(FULL_BATCH, pull=0.0).next_round(state, clients).models
    pulled = MRMTL(FULL_BATCH, pull=2.0).next_round(state, clients).models
    expected = free - LEARNING_RATE * 2.0 * (models - models.mean(axis=0))
    np.testing.assert_allclose(pulled, expected, atol=1e-6)
    assert np.abs(pulled - free).max() > 1e-3


def test_mr_mtl_can_clip_its_pull(worker, digits_store, model):
    training = LocalTraining(rounds=2, local_epochs=1, batch_size=16)

    def models(pull, clip_pull, epsilon):
        algorithm = MRMTL(training, pull, clip_pull)
        return run(algorithm, federation(digits_store, model, algorithm, epsilon), 2).models

    without = models(0.0, False, epsilon=5.0)
    np.testing.assert_allclose(models(0.0, True, epsilon=5.0), without, atol=1e-5)
    # A strong pull that is clipped moves a model by far less than one that is not.
    free, clipped = models(20.0, False, epsilon=5.0), models(20.0, True, epsilon=5.0)
    assert np.abs(clipped - free).max() > 0.05
    np.testing.assert_array_equal(
        models(20.0, False, epsilon=math.inf), models(20.0, True, epsilon=math.inf)
    )


def test_ifca_without_a_selection_budget_takes_the_most_accurate_model(worker, digits_store, model):
    inits = np.stack([smooth_model(seed).initial_parameters for seed in (5, 6, 7)])
    training = LocalTraining(rounds=3, local_epochs=1, batch_size=16)
    algorithm = IFCA(training, inits, selection_rounds=1, epsilon_select=math.inf)
    clients = federation(digits_store, model, algorithm)
    first = algorithm.first_round(clients)
    accuracies = np.array([clients.evaluate(inits, [m] * 3, "train") for m in range(3)])
    np.testing.assert_array_equal(first.assignment, accuracies.argmax(axis=0))
    assert (first.stage, clients.done[0].selections) == ("private selection", 1)
    second = algorithm.next_round(first, clients)
    assert (second.stage, clients.done[0].selections) == ("fixed clusters", 1)
    assert second.assignment == first.assignment
    unused = set(range(3)) - set(first.assignment)
    for index in unused:
        np.testing.assert_array_equal(second.models[index], inits[index])


def test_odpcfl_is_rdpcfl_with_a_perfect_mixture(worker, digits_store, model):
    training = LocalTraining(rounds=3, local_epochs=1, batch_size=16)
    oracle = ODPCFL(training, digits_store.true_clusters)
    robust = RDPCFL(
        training=training,
        first_batch_size=None,
        num_clusters=2,
        candidates=(2,),
        mixture_mode="default",
        selection_rounds=0,
        epsilon_select=0.0,
        seed=0,
    )
    clients = federation(digits_store, model, oracle)
    models = np.tile(model.initial_parameters, (2, 1))
    perfect = np.eye(2)[list(digits_store.true_clusters)]
    Perfect = collections.namedtuple("Perfect", "responsibilities switch_round")
    start = State(1, "", models, (0, 0, 0), clustering=Perfect(perfect, switch_round=2))
    after_oracle = State(1, "", models, tuple(digits_store.true_clusters))
    for _ in range(2):
        start = robust.next_round(start, clients)
        after_oracle = oracle.next_round(after_oracle, clients)
    np.testing.assert_array_equal(start.models, after_oracle.models)


@pytest.mark.parametrize(
    ("epsilon", "no_selection", "ifca"), [(3, 1.374, 1.414), (5, 1.012, 1.040), (15, 0.652, 0.669)]
)
def test_every_algorithm_pays_for_what_it_uses(epsilon, no_selection, ifca):
    training = LocalTraining(rounds=200, local_epochs=1, batch_size=32)
    plans = [
        (Global(training), no_selection),
        (Local(training), no_selection),
        (MRMTL(training, 1.0), no_selection),
        (ODPCFL(training, (0, 1)), no_selection),
        (IFCA(training, np.zeros((2, 1)), 20, 0.03 * epsilon), ifca),
    ]
    for algorithm, expected in plans:
        schedule = algorithm.schedule(8000)
        z = accounting.noise_multiplier(schedule, epsilon, 1e-4)
        assert z == pytest.approx(expected, rel=0.005)
        assert accounting.epsilon_spent(schedule, z, 1e-4) <= epsilon
