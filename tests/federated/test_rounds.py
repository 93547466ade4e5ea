"""One round in the TFF worker, held against the same training in plain TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from rdpcfl_tff.federated import client_data, rounds, runtime
from rdpcfl_tff.models import cnn, functional
from rdpcfl_tff.privacy import clipping, dp_sgd


@pytest.fixture(scope="module")
def engine():
    return clipping.fast_engine(functional.FunctionalModel(cnn.cnn(seed=3)))


@pytest.fixture(scope="module")
def records(digits_store):
    return client_data.RecordFormat.of(digits_store)


def tasks(store, assignment):
    return [
        rounds.client_task(
            silo,
            model,
            dp_sgd.LocalTask(
                records=store.client_sizes["train"][client],
                batch_size=8,
                steps=4,
                learning_rate=0.1,
                clip_norm=1.0,
                noise_multiplier=0.5,
                seed=(7, client),
            ),
        )
        for client, (silo, model) in enumerate(
            zip(store.client_directories, assignment, strict=True)
        )
    ]


def update_outside_tff(engine, records, models, task, private):
    """What the client's computation should return, computed in this process."""

    @tf.function
    def train(parameters):
        images, labels = records.read(task["silo"], "train")
        local_task = dp_sgd.LocalTask(*(task[name] for name in dp_sgd.LocalTask._fields))
        return dp_sgd.train(engine, parameters, images, labels, local_task, records.scale, private)

    return train(tf.constant(models[task["model"]])).numpy()


@pytest.mark.parametrize("private", [True, False])
def test_each_model_moves_by_the_average_of_its_clients(
    worker, digits_store, engine, records, private
):
    process = rounds.build_round(3, records, engine, private)
    models = process.initialize()
    np.testing.assert_array_equal(models, np.tile(engine.model.initial_parameters, (3, 1)))

    round_tasks = tasks(digits_store, assignment=(2, 0, 2))
    after, clients = process.next(models, round_tasks)
    assert clients.tolist() == [1, 0, 2]

    updates = [update_outside_tff(engine, records, models, task, private) for task in round_tasks]
    assert all(np.linalg.norm(update) > 1e-3 for update in updates)
    np.testing.assert_allclose(after[0], models[0] + updates[1], atol=1e-6)
    np.testing.assert_array_equal(after[1], models[1], err_msg="nobody trained it")
    np.testing.assert_allclose(after[2], models[2] + (updates[0] + updates[2]) / 2, atol=1e-6)


def test_an_average_has_the_weights_of_the_tasks(worker, digits_store, engine, records):
    process = rounds.build_round(1, records, engine, True)
    models = process.initialize()
    round_tasks = tasks(digits_store, assignment=(0, 0, 0))
    for task, weight in zip(round_tasks, (1.0, 0.25, 0.0), strict=True):
        task["weight"] = weight
    after, clients = process.next(models, round_tasks)
    assert clients.tolist() == [3]
    updates = [update_outside_tff(engine, records, models, task, True) for task in round_tasks]
    np.testing.assert_allclose(
        after[0], models[0] + (updates[0] + 0.25 * updates[1]) / 1.25, atol=1e-6
    )


def test_first_round_returns_every_update(worker, digits_store, engine, records):
    model = engine.model.initial_parameters[np.newaxis]
    round_tasks = tasks(digits_store, assignment=(0, 0, 0))
    updates = rounds.build_updates(records, engine, True)(model, round_tasks)
    for update, task in zip(updates, round_tasks, strict=True):
        expected = update_outside_tff(engine, records, model, task, True)
        np.testing.assert_allclose(update, expected, atol=1e-6)


def test_one_seed_gives_the_same_bits_on_another_worker(digits_store, engine, records):
    round_tasks = tasks(digits_store, assignment=(0, 0, 1))
    process = rounds.build_round(2, records, engine, True)
    results = []
    for cores in (1, 2, 2):
        with runtime.local_worker(runtime.RuntimeConfig(cores=cores)):
            models, _ = process.next(process.initialize(), round_tasks)
            results.append(process.next(models, round_tasks)[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1], results[2])


def test_the_order_of_the_clients_does_not_change_a_bit(worker, digits_store, engine, records):
    process = rounds.build_round(1, records, engine, True)
    round_tasks = tasks(digits_store, assignment=(0, 0, 0))
    one, _ = process.next(process.initialize(), round_tasks)
    other, _ = process.next(process.initialize(), round_tasks[::-1])
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("learning_rate", [1e6, np.inf, np.nan])
def test_a_client_that_diverges_is_left_out(worker, digits_store, engine, records, learning_rate):
    process = rounds.build_round(2, records, engine, True)
    models = process.initialize()
    sound, diverging, _ = tasks(digits_store, assignment=(0, 0, 1))
    diverging["learning_rate"] = learning_rate
    after, clients = process.next(models, [sound, diverging])
    assert clients.tolist() == [1, 0]
    alone, _ = process.next(models, [sound])
    np.testing.assert_array_equal(after, alone)
