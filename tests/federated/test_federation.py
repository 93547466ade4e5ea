"""Clients that are missing in a round: the others go on, and only what was done is paid for."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest

from rdpcfl_tff.algorithms.base import LocalTraining
from rdpcfl_tff.errors import WorkerError
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import accounting, clipping, randomness
from rdpcfl_tff.privacy.accounting import Done
from rdpcfl_tff.privacy.plan import PrivacyPlan

TRAINING = LocalTraining(rounds=30, local_epochs=1, batch_size=16)
NOBODY = (Done(), Done(), Done())


def build_federation(store, dropout=0.0, learning_rate=0.1, weighted=False):
    schedules = [
        TRAINING.schedule(size, selections=3, epsilon_select=0.5)
        for size in store.client_sizes["train"]
    ]
    return Federation(
        silos=store.client_directories,
        records=RecordFormat.of(store),
        engine=clipping.fast_engine(FunctionalModel(cnn(seed=1))),
        plan=PrivacyPlan.calibrate(schedules, 8.0, 1e-3),
        learning_rate=learning_rate,
        clip_norm=1.0,
        key=randomness.run_key(0),
        dropout=dropout,
        weighted=weighted,
    )


@pytest.fixture
def own_store(digits_store, tmp_path):
    """A copy of the silos, to damage."""
    shutil.copytree(digits_store.path, tmp_path / "silos")
    return type(digits_store).open(tmp_path / "silos")


def test_clients_drop_out_as_often_as_asked_for(digits_store):
    federation = build_federation(digits_store, dropout=0.3)
    present = [federation.present(number) for number in range(1, 401)]
    missing = 3 * 400 - sum(map(len, present))
    # Four standard deviations of a binomial count.
    assert abs(missing - 360) <= 4 * np.sqrt(1200 * 0.3 * 0.7)
    again = build_federation(digits_store, dropout=0.3)
    assert [again.present(number) for number in range(1, 401)] == present


def test_a_round_averages_over_those_who_are_there(worker, digits_store):
    federation = build_federation(digits_store, dropout=0.5)
    models = federation.initial_parameters[np.newaxis]
    number = next(n for n in range(2, 30) if federation.present(n) == (0, 2))
    after = federation.train(models, [0, 0, 0], number)
    assert federation.done == (Done(later_rounds=1), Done(), Done(later_rounds=1))

    everybody = build_federation(digits_store)
    updates = everybody.updates(models[0], number)
    np.testing.assert_allclose(after[0], models[0] + updates[[0, 2]].mean(axis=0), atol=1e-6)


def test_nobody_there_changes_nothing_and_costs_nothing(worker, digits_store):
    federation = build_federation(digits_store, dropout=0.5)
    number = next(n for n in range(1, 100) if federation.present(n) == ())
    models = np.tile(federation.initial_parameters, (3, 1))
    np.testing.assert_array_equal(federation.train(models, [0, 1, 2], number), models)
    np.testing.assert_array_equal(federation.train_personal(models, models[0], 1, number), models)
    assert federation.select(models, [0, 1, 2], number) == (0, 1, 2)
    assert np.isnan(federation.updates(models[0], number)).all()
    assert (federation.trained, federation.done) == (0, NOBODY)
    assert federation.plan.epsilon_spent(federation.done) == 0


def test_a_missing_client_keeps_its_cluster_its_model_and_its_budget(worker, digits_store):
    federation = build_federation(digits_store, dropout=0.5)
    number = next(n for n in range(2, 30) if federation.present(n) == (1, 2))
    models = np.tile(federation.initial_parameters, (3, 1))
    assert federation.select(models, [2, 0, 0], number)[0] == 2
    assert [done.selections for done in federation.done] == [0, 1, 1]
    after = federation.train_personal(models, models[0], 0.0, number)
    np.testing.assert_array_equal(after[0], models[0])
    assert np.abs(after[1:] - models[1:]).max() > 0
    plan = federation.plan
    spent = accounting.epsilon_spent(
        plan.schedules[1], plan.noise_multipliers[1], plan.deltas[1], done=Done(False, 1, 1)
    )
    assert plan.epsilon_spent(federation.done) == spent


@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_a_round_goes_on_without_a_damaged_silo(worker, own_store, caplog, damage):
    silo = own_store.client_directories[1]
    if damage == "gone":
        shutil.rmtree(silo)
    else:
        with open(f"{silo}/train.images", "r+b") as file:
            file.truncate(1000)
    federation = build_federation(own_store)
    updates = federation.updates(federation.initial_parameters, 1)
    assert np.isnan(updates).all(axis=1).tolist() == [False, True, False]
    assert federation.done == (Done(True), Done(), Done(True))
    assert "client 1: its silo" in caplog.text
    models = federation.initial_parameters[np.newaxis]
    accuracies = federation.evaluate(models, [0, 0, 0], "train")
    assert np.isnan(accuracies).tolist() == [False, True, False]


def test_a_silo_that_goes_away_in_the_middle_of_a_round_is_left_out_of_it(
    worker, own_store, digits_store, caplog
):
    federation = build_federation(own_store)
    models = federation.initial_parameters[np.newaxis]
    assert federation.present(2) == (0, 1, 2)  # the round has begun
    shutil.rmtree(own_store.client_directories[1])
    after = federation.train(models, [0, 0, 0], 2)
    updates = build_federation(digits_store).updates(models[0], 2)
    np.testing.assert_allclose(after[0], models[0] + updates[[0, 2]].mean(axis=0), atol=1e-6)
    assert federation.present(2) == (0, 2)
    assert "client 1: its silo" in caplog.text
    # It may have trained before it went away, so it has paid; and nobody has paid twice.
    assert federation.done == (Done(later_rounds=1),) * 3


def test_nobody_joins_in_the_middle_of_a_round(worker, own_store, digits_store):
    first, second = (pathlib.Path(silo) for silo in own_store.client_directories[:2])
    federation = build_federation(own_store)
    shutil.move(first, first.with_suffix(".away"))
    assert federation.present(2) == (1, 2)
    shutil.move(first.with_suffix(".away"), first)
    shutil.rmtree(second)
    models = federation.initial_parameters[np.newaxis]
    after = federation.train(models, [0, 0, 0], 2)
    updates = build_federation(digits_store).updates(models[0], 2)
    np.testing.assert_allclose(after[0], models[0] + updates[2], atol=1e-6)
    assert federation.trained == 1
    assert federation.done == (Done(), Done(later_rounds=1), Done(later_rounds=1))


def test_a_computation_that_fails_with_all_silos_there_is_an_error(worker, own_store):
    federation = build_federation(own_store)
    directory = pathlib.Path(own_store.client_directories[1])
    (directory / "train.labels").write_bytes(
        b"\xff" * len((directory / "train.labels").read_bytes())
    )
    with pytest.raises(WorkerError):
        federation.train(federation.initial_parameters[np.newaxis], [0, 0, 0], 2)


def test_the_less_noisy_count_for_more_where_asked_for(worker, digits_store):
    plain, weighted = (build_federation(digits_store, weighted=weighted) for weighted in (0, 1))
    weighted.plan = plain.plan = dataclasses.replace(
        plain.plan, noise_multipliers=(1.0, 2.0, 4.0), first_round_noise_multipliers=()
    )
    models = plain.initial_parameters[np.newaxis]
    updates = plain.updates(models[0], 2)
    weights = plain.plan.average_weights(2)
    assert weights[0] > weights[1] > weights[2]
    for federation, chosen in ((plain, np.ones(3)), (weighted, weights)):
        after = federation.train(models, [0, 0, 0], 2)
        average = np.average(updates, axis=0, weights=chosen)
        np.testing.assert_allclose(after[0], models[0] + average, atol=1e-6)


def test_training_that_diverges_is_contained_and_told(worker, digits_store, caplog):
    federation = build_federation(digits_store, learning_rate=1e30)
    models = np.tile(federation.initial_parameters, (3, 1))
    np.testing.assert_array_equal(federation.train(models, [0, 1, 2], 2), models)
    assert (federation.trained, federation.left_out) == (3, 3)
    assert "round 2: the training of 3 clients diverged" in caplog.text
    np.testing.assert_array_equal(federation.train_personal(models, models[0], 0.0, 2), models)
    assert np.isnan(federation.updates(models[0], 2)).all()
