"""Two workers give the bits of one, also when one of them dies; and nothing of them is left."""

import logging
import os
import shutil
import signal
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from rdpcfl_tff.errors import WorkerError
from rdpcfl_tff.federated import client_data, remote, rounds, runtime, scoring
from rdpcfl_tff.models import cnn, functional
from rdpcfl_tff.privacy import clipping, dp_sgd
from tests.federated.worker_processes import kill_when, worker_processes

SILOS = ("client_000", "client_001", "client_002")


@pytest.fixture(scope="module")
def engine():
    return clipping.fast_engine(functional.FunctionalModel(cnn.cnn(seed=3)))


@pytest.fixture(scope="module")
def records(digits_store):
    return client_data.RecordFormat.of(digits_store)


@pytest.fixture
def start_worker():
    """Starts workers as `experiments.worker` does, each in a folder of silos."""
    started = []

    def start(folder):
        worker = runtime.LocalWorker(runtime.RuntimeConfig(cores=1), directory=folder)
        started.append(worker)
        worker.start()
        worker.disconnect()
        return worker.address

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def two_folders(digits_store, tmp_path):
    """The store's silos, without their order, in two folders of which none has all."""
    for folder, silos in (("one", SILOS[1:2]), ("two", (SILOS[0], SILOS[2]))):
        for silo in silos:
            shutil.copytree(digits_store.path / silo, tmp_path / folder / silo)
    return tmp_path / "one", tmp_path / "two"


def local_task(client: int, steps: int) -> dp_sgd.LocalTask:
    return dp_sgd.LocalTask(48, 8, steps, 0.1, 1.0, 0.5, (7, client))


def tasks(silos, steps=4):
    return [
        rounds.client_task(silo, client % 2, local_task(client, steps))
        for client, silo in enumerate(silos)
    ]


def everything(silos, engine, records) -> dict[str, np.ndarray]:
    """The results of all kinds of computations that a run has."""
    process = rounds.build_round(2, records, engine, True)
    models, clients = process.next(process.initialize(), tasks(silos))
    first = engine.model.initial_parameters
    personal = [
        rounds.personal_task(first, rounds.client_task(silo, 0, local_task(client, 4)))
        for client, silo in enumerate(silos)
    ]
    selections = [
        scoring.selection_task(silo, 48, 5.0, (3, client)) for client, silo in enumerate(silos)
    ]
    evaluations = [scoring.evaluation_task(silo, client % 2) for client, silo in enumerate(silos)]
    updates = [
        rounds.client_task(silo, 0, local_task(client, 4)) for client, silo in enumerate(silos)
    ]
    anchor = {"anchor": first, "pull": 0.5}
    return {
        "models": models,
        "clients": clients,
        "updates": rounds.build_updates(records, engine, True)(first[np.newaxis], updates),
        "personal": rounds.build_personal_round(records, engine, True)(anchor, personal),
        "selected": scoring.build_selection(2, engine.model, records)(models, selections),
        "accuracy": scoring.build_evaluation(2, engine.model, records, "test")(models, evaluations),
    }


def test_two_workers_next_to_their_silos_give_the_bits_of_one(
    digits_store, two_folders, start_worker, engine, records, worker
):
    expected = everything(digits_store.client_directories, engine, records)
    addresses = [start_worker(folder) for folder in two_folders]
    with remote.remote_workers(addresses, SILOS, retries=0, move=False):
        found = everything(SILOS, engine, records)
    assert np.any(expected["models"][0] != expected["models"][1])
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_worker_that_dies_in_a_round_leaves_its_clients_to_the_other(
    digits_store, start_worker, engine, records, worker, caplog
):
    process = rounds.build_round(2, records, engine, True)
    expected, _ = process.next(process.initialize(), tasks(digits_store.client_directories, 60))
    addresses = [start_worker(digits_store.path) for _ in range(2)]
    started = threading.Event()
    with remote.remote_workers(addresses, SILOS, retries=0, move=True):
        models = process.initialize()
        process.next(models, tasks(SILOS, 1))  # compiles, so that the kill meets the clients' work
        kill_when(started.is_set, lambda: worker_processes(addresses[0]))
        threading.Timer(0.3, started.set).start()
        with caplog.at_level(logging.INFO, "rdpcfl_tff"):
            found, _ = process.next(models, tasks(SILOS, 60))
        again, _ = process.next(models, tasks(SILOS, 60))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(again, expected)
    (line,) = caplog.messages
    assert addresses[0] in line and "Its clients move to the other workers" in line


def test_clients_are_not_moved_away_from_their_silos(two_folders, start_worker, engine, records):
    addresses = [start_worker(folder) for folder in two_folders]
    process = rounds.build_round(2, records, engine, True)
    with remote.remote_workers(addresses, SILOS, retries=0, move=True):
        models = process.initialize()
        (pid,) = worker_processes(addresses[1])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="No worker that is left has client_000"):
            process.next(models, tasks(SILOS))


def test_a_dead_worker_stops_the_run_if_that_is_wanted(digits_store, start_worker):
    addresses = [start_worker(digits_store.path) for _ in range(2)]
    with remote.remote_workers(addresses, SILOS, retries=0, move=False):
        (pid,) = worker_processes(addresses[1])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"{addresses[1]} is lost"):
            total([1, 2, 3])


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
    return tff.federated_sum(values)


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def values_and_total(values):
    return values, tff.federated_sum(values)


def test_any_computation_runs_on_several_workers(digits_store, start_worker):
    addresses = [start_worker(digits_store.path) for _ in range(2)]
    with remote.remote_workers(addresses, SILOS, retries=0, move=False):
        assert total([1, 2, 3, 4, 5]) == 15
        assert total([7]) == 7
        assert tff.tensorflow.computation(lambda: tf.constant(3))() == 3
        with pytest.raises(ValueError, match="work twice"):
            values_and_total([1, 2])


def test_no_thread_and_no_port_is_left(digits_store, start_worker):
    before = set(threading.enumerate())
    address = start_worker(digits_store.path)
    with remote.remote_workers([address], SILOS, retries=0, move=False):
        assert total([1, 2]) == 3
    assert set(threading.enumerate()) <= before
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=5):
        pass  # the worker goes on, for other runs


def test_a_silo_that_no_worker_has_is_told_at_the_start(digits_store, start_worker):
    address = start_worker(digits_store.path)
    with (
        pytest.raises(WorkerError, match="No worker has client_900: start the workers with"),
        remote.remote_workers([address], ("client_000", "client_900"), retries=0, move=True),
    ):
        pass


def test_a_worker_that_is_not_there_is_told_at_the_start(monkeypatch):
    monkeypatch.setattr(remote.RemoteWorker, "start_seconds", 1.0)
    with (
        pytest.raises(WorkerError, match=r"localhost:9 did not answer.* -m experiments\.worker"),
        remote.remote_workers(["localhost:9"], SILOS, retries=0, move=True),
    ):
        pass
