"""Clients in this process, on two devices, held against the same clients in TFF's worker."""

import collections
import csv
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from rdpcfl_tff.errors import UserError, WorkerError
from rdpcfl_tff.execution import Execution
from rdpcfl_tff.federated import client_data, in_process, rounds, scoring
from rdpcfl_tff.models import cnn, functional
from rdpcfl_tff.privacy import clipping, dp_sgd

TWO_DEVICES = ("CPU:0", "CPU:1")


@pytest.fixture(scope="module")
def run_all(digits_store):
    """A function that runs every kind of computation that a federation has."""
    records = client_data.RecordFormat.of(digits_store)
    engine = clipping.fast_engine(functional.FunctionalModel(cnn.cnn(seed=3)))
    silos = digits_store.client_directories
    tasks = [
        rounds.client_task(
            silo,
            model,
            dp_sgd.LocalTask(
                records=digits_store.client_sizes["train"][client],
                batch_size=8,
                steps=4,
                learning_rate=0.1,
                clip_norm=1.0,
                noise_multiplier=0.5,
                seed=(7, client),
            ),
        )
        for client, (silo, model) in enumerate(zip(silos, (2, 0, 2), strict=True))
    ]
    first_tasks = [task | {"model": 0} for task in tasks]
    selections = [
        scoring.selection_task(silo, 48, 1000.0, (1, client)) for client, silo in enumerate(silos)
    ]
    evaluations = [scoring.evaluation_task(silo, client) for client, silo in enumerate(silos)]
    process = rounds.build_round(3, records, engine, True)
    updates = rounds.build_updates(records, engine, True)
    personal_round = rounds.build_personal_round(records, engine, True)
    selection = scoring.build_selection(3, engine.model, records)
    evaluation = scoring.build_evaluation(3, engine.model, records, "train")

    def run() -> dict[str, np.ndarray]:
        models, clients = process.next(process.initialize(), tasks)
        anchor = collections.OrderedDict(anchor=models[0], pull=0.5)
        personal_tasks = [rounds.personal_task(models[0], task) for task in tasks]
        return {
            "models": models,
            "clients": clients,
            "updates": np.stack(updates(models[:1], first_tasks)),
            "personal_models": np.stack(personal_round(anchor, personal_tasks)),
            "selected": np.array(selection(models, selections)),
            "accuracies": np.array(evaluation(models, evaluations)),
        }

    return run


@pytest.fixture(scope="module")
def on_two_devices(run_all):
    with in_process.in_process(TWO_DEVICES):
        return run_all()


def test_the_worker_gives_the_same_results(worker, run_all, on_two_devices):
    expected = run_all()
    assert np.abs(expected["updates"]).max() > 1e-3
    for name, values in on_two_devices.items():
        assert values.dtype == expected[name].dtype
        np.testing.assert_allclose(values, expected[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("devices", [TWO_DEVICES, ("CPU:0",)])
def test_a_repeated_call_gives_the_same_bits(run_all, on_two_devices, devices):
    with in_process.in_process(devices):
        for _ in range(2):
            for name, values in run_all().items():
                np.testing.assert_array_equal(values, on_two_devices[name], err_msg=name)


def test_results_keep_their_types_and_the_clients_their_order():
    client_type = tff.StructWithPythonType(
        [("name", tff.TensorType(np.str_)), ("number", tff.TensorType(np.float32))],
        collections.OrderedDict,
    )

    @tff.tensorflow.computation(tff.TensorType(np.float32), client_type)
    def scale(factor, client):
        return collections.OrderedDict(name=client["name"], number=factor * client["number"])

    @tff.federated_computation(
        tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS)
    )
    def scaled(factor, clients):
        return tff.federated_map(scale, (tff.federated_broadcast(factor), clients))

    @tff.federated_computation(
        tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(np.int32, tff.CLIENTS)
    )
    def factor_and_total(factor, numbers):
        return collections.OrderedDict(factor=factor, total=tff.federated_sum(numbers))

    clients = [collections.OrderedDict(number=n, name=f"client {n}") for n in range(7)]
    with in_process.in_process(TWO_DEVICES):
        assert scaled(0.5, clients) == [
            collections.OrderedDict(name=f"client {n}".encode(), number=n / 2) for n in range(7)
        ]
        assert factor_and_total(0.5, [1, 2, 3]) == collections.OrderedDict(factor=0.5, total=6)
        assert tff.tensorflow.computation(lambda: 3)() == 3


# TensorFlow prints where it puts an operation when it is first to run it.
PLACEMENT_PROGRAM = """
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from rdpcfl_tff.federated import in_process

@tff.tensorflow.computation(np.float32, np.float32)
def client_work(one, other):
    return tf.sqrt(one + other)

@tff.tensorflow.computation(np.float32)
def server_work(total):
    return tf.exp(total)

@tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS)
)
def computation(one, others):
    reports = tff.federated_map(client_work, (tff.federated_broadcast(one), others))
    return tff.federated_map(server_work, tff.federated_sum(reports))

original = in_process._session_config
def with_log(devices):
    config = original(devices)
    config.log_device_placement = True
    return config
in_process._session_config = with_log

with in_process.in_process(("CPU:1", "CPU:2")):
    print("result", computation(1.0, [3.0, 8.0, 3.0]))
"""


def test_clients_are_spread_over_the_devices():
    done = subprocess.run(
        [sys.executable, "-c", PLACEMENT_PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"result (\S+)", done.stdout)[1]) == pytest.approx(np.exp(7))
    placed = re.findall(r"\((\w+)\): /job.*device:(CPU:\d)", done.stdout)
    assert {device for operation, device in placed if operation == "Sqrt"} == {"CPU:1", "CPU:2"}
    assert {device for operation, device in placed if operation == "Exp"} == {"CPU:0"}


def test_a_silo_that_is_missing_is_named(run_all, digits_store, tmp_path):
    records = client_data.RecordFormat.of(digits_store)
    model = functional.FunctionalModel(cnn.cnn())
    evaluation = scoring.build_evaluation(1, model, records, "train")
    task = scoring.evaluation_task(str(tmp_path / "no_silo"), 0)
    with (
        in_process.in_process(TWO_DEVICES),
        pytest.raises(WorkerError, match=r"failed in this process.*no_silo"),
    ):
        evaluation(model.initial_parameters[np.newaxis], [task])


def test_which_devices_a_run_gets():
    assert in_process.gpus() == (), "these tests are for a machine without a GPU"
    here = Execution()
    assert in_process.with_devices(here, "worker").runtime == "worker"
    assert in_process.with_devices(here, "auto").runtime == "worker"
    assert in_process.with_devices(here, "in_process").client_devices == ("CPU:0",)
    assert in_process.with_devices(here, "in_process").runtime == "in_process_cpu"
    named = Execution(client_devices=TWO_DEVICES)
    assert in_process.with_devices(named, "auto").client_devices == TWO_DEVICES
    remote = Execution(workers=("host:8000",))
    assert in_process.with_devices(remote, "auto").runtime == "worker"
    assert Execution(client_devices=("GPU:0",)).runtime == "in_process_gpu"
    with pytest.raises(UserError, match="sees no GPU:1, only CPU:0"):
        in_process.with_devices(Execution(client_devices=("GPU:1",)), "in_process")


@pytest.mark.parametrize(
    ("devices", "message"),
    [(("gpu0",), "'gpu0' is no device"), (("CPU:0", "GPU:0"), "CPUs or GPUs, not both")],
)
def test_devices_that_are_none_are_refused(devices, message):
    with pytest.raises(UserError, match=message):
        Execution(client_devices=devices)


ROUNDS = 3
FLAGS = (
    *("--dataset=digits", "--preset=smoke", f"--rounds={ROUNDS}", "--cluster_sizes=2,3"),
    *("--num_clusters=2", "--selection_ratio=0.34", "--eps=8", "--delta=1e-3"),
)


def start(folder, name: str, *flags: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.main", *FLAGS, *flags),
            *(f"--cache_dir={folder}", f"--output_dir={folder}/{name}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(folder, name: str, *flags: str) -> str:
    process = start(folder, name, *flags)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def models(folder) -> np.ndarray:
    with np.load(folder / "models.npz") as file:
        return file["models"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished run in one process, on two devices."""
    folder = tmp_path_factory.mktemp("in_process")
    finish(folder, "run", "--runtime=in_process", "--client_devices=CPU:0,CPU:1")
    return folder


def test_a_run_has_the_workers_result_to_float_accuracy(run_folder):
    finish(run_folder, "worker", "--runtime=worker")
    np.testing.assert_allclose(models(run_folder / "run"), models(run_folder / "worker"), atol=1e-4)
    trajectories = []
    for name in ("run", "worker"):
        with open(run_folder / name / "simulation_metrics.csv", newline="") as file:
            trajectories.append([float(row["mean"]) for row in csv.DictReader(file)])
    # A record whose two best classes are equal to the last bits may change sides.
    np.testing.assert_allclose(trajectories[0], trajectories[1], atol=0.01)
    assert len(trajectories[0]) == ROUNDS


def test_a_killed_run_goes_on_in_the_same_runtime_only(run_folder):
    process = start(run_folder, "broken", "--runtime=in_process")
    while not (run_folder / "broken" / "checkpoint_000001.npz").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    written = json.loads((run_folder / "broken" / "config.json").read_text())
    assert written["runtime"] == "in_process_cpu"

    refused = start(run_folder, "broken", "--runtime=worker")
    output, _ = refused.communicate(timeout=300)
    assert refused.returncode == 1
    assert "runtime was in_process_cpu, now worker" in output

    assert "going on after round" in finish(run_folder, "broken", "--runtime=in_process")
    for name in ("summary.json", "metrics.csv", "simulation_metrics.csv"):
        unbroken = (run_folder / "run" / name).read_bytes()
        assert (run_folder / "broken" / name).read_bytes() == unbroken, name
    np.testing.assert_array_equal(models(run_folder / "broken"), models(run_folder / "run"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runtime=worker", "--client_devices=CPU:0"], "--client_devices: the worker"),
        (["--runtime=in_process", "--workers=host:8000"], "--runtime=in_process and --workers"),
        (["--client_devices=GPU:7"], "--client_devices=GPU:7: TensorFlow sees no GPU:7"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_do_not_fit_are_told_in_one_line(tmp_path, flags, message):
    process = start(tmp_path, "run", *flags)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert output.splitlines()[-1].startswith(f"error: {message}")
    assert not (tmp_path / "run").exists()
