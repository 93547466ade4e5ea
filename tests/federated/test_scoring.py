"""Accuracies and private selections, held against the same numbers computed by hand."""

import numpy as np
import pytest

from rdpcfl_tff.federated import client_data, scoring
from rdpcfl_tff.models import cnn, functional

MODELS = [cnn.cnn(seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def model():
    return functional.FunctionalModel(MODELS[0])


@pytest.fixture(scope="module")
def parameters():
    return np.stack([functional.FunctionalModel(one).initial_parameters for one in MODELS])


def accuracies_by_hand(store, split):
    """Keras' own predictions on every client's files: [client, model]."""
    table = []
    for client in range(store.num_clients):
        images, labels = store.read(client, split)
        scaled = (images / 255.0 - store.normalisation.mean) / store.normalisation.std
        predictions = [np.argmax(one.predict(scaled, verbose=0), axis=1) for one in MODELS]
        table.append([np.mean(prediction == labels) for prediction in predictions])
    return np.array(table)


def test_accuracy_of_each_clients_own_model(worker, digits_store, model, parameters):
    evaluation = scoring.build_evaluation(
        3, model, client_data.RecordFormat.of(digits_store), "train"
    )
    assignment = (2, 0, 1)
    found = evaluation(
        parameters,
        [
            scoring.evaluation_task(silo, one)
            for silo, one in zip(digits_store.client_directories, assignment, strict=True)
        ],
    )
    expected = accuracies_by_hand(digits_store, "train")[range(3), assignment]
    assert np.any(expected > 0)  # a broken comparison of tensors makes all of them 0
    np.testing.assert_allclose(found, expected)


def test_selection_with_an_endless_budget_takes_the_most_accurate_model(
    worker, digits_store, model, parameters
):
    select = scoring.build_selection(3, model, client_data.RecordFormat.of(digits_store))
    chosen = select(
        parameters,
        [
            scoring.selection_task(silo, 48, np.inf, (1, client))
            for client, silo in enumerate(digits_store.client_directories)
        ],
    )
    expected = np.argmax(accuracies_by_hand(digits_store, "train"), axis=1)
    np.testing.assert_array_equal(chosen, expected)
