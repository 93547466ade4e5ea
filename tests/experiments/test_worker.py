"""Runs whose worker dies, and runs on workers elsewhere, end as a run on one good worker."""

import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import silos, sources
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.execution import ON_THIS_MACHINE, Execution
from tests.federated.worker_processes import kill_when, own_workers, wait_until, worker_processes

CONFIG = RunConfig(
    algorithm="rdpcfl",
    dataset="digits",
    cluster_sizes=(2, 3),
    samples_per_client=100,
    epsilon=8.0,
    delta=1e-3,
    rounds=4,
    batch_size=8,
    num_clusters=2,
    selection_ratio=0.25,
)
FLAGS = (
    "--dataset=digits",
    "--cluster_sizes=2,3",
    "--samples_per_client=100",
    "--eps=8",
    "--delta=1e-3",
    "--rounds=4",
    "--batch_size=8",
    "--num_clusters=2",
    "--selection_ratio=0.25",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    config = silos.SiloConfig(CONFIG.cluster_sizes, CONFIG.shift, CONFIG.samples_per_client)
    return silos.build_store(
        sources.load("digits"), config, tmp_path_factory.mktemp("data") / "silos"
    )


def run(store, folder, execution=ON_THIS_MACHINE) -> dict:
    from rdpcfl_tff.training import driver

    return driver.run(CONFIG, store, folder, ["main"], execution=execution)


@pytest.fixture(scope="module")
def unbroken(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    run(store, folder)
    return folder


def assert_same_results(one: pathlib.Path, two: pathlib.Path):
    for name in ("summary.json", "metrics.csv", "assignments.csv", "simulation_clients.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    with np.load(one / "models.npz") as first, np.load(two / "models.npz") as second:
        np.testing.assert_array_equal(first["models"], second["models"])


def after_a_round(folder: pathlib.Path):
    return lambda: any(folder.glob("checkpoint_*"))


def test_a_worker_killed_in_a_run_changes_nothing_but_a_line(store, unbroken, tmp_path, caplog):
    others = own_workers()
    kill_when(after_a_round(tmp_path), lambda: own_workers() - others)
    with caplog.at_level(logging.WARNING):
        run(store, tmp_path)
    (line,) = [line for line in caplog.messages if "retries" in line]
    assert "It was killed" in line and caplog.messages == [line]
    assert_same_results(unbroken, tmp_path)


def command(name: str, *flags: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{name}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_that_dies_too_often_ends_the_run_with_a_checkpoint(unbroken, tmp_path):
    folder = tmp_path / "run"
    process = command(
        "main",
        *FLAGS,
        "--rounds=100",  # not over before a busy machine comes to kill its worker
        "--runtime=worker",
        "--worker_retries=0",
        f"--cache_dir={tmp_path}",
        f"--output_dir={folder}",
    )
    kill_when(after_a_round(folder), lambda: own_workers(process.pid))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "error: The TFF worker ended with exit code 137. It was killed" in errors
    assert f"the same command with --output_dir={folder} goes on from there" in errors
    assert any(folder.glob("checkpoint_*")) and not (folder / "summary.json").exists()


@pytest.fixture(scope="module")
def worker_commands(store, tmp_path_factory, free_ports):
    """Two `experiments.worker`, each with the silos of other clients."""
    processes = []
    for number, port in enumerate(free_ports):
        folder = tmp_path_factory.mktemp("machine")
        for client in range(number, store.num_clients, 2):
            name = f"client_{client:03d}"
            shutil.copytree(store.path / name, folder / name)
        processes.append(command("worker", f"--port={port}", "--cores=1", f"--silos={folder}"))
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready on port")
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def free_ports():
    from rdpcfl_tff.federated import runtime

    return [runtime.free_port() for _ in range(2)]


def addresses(ports) -> tuple[str, ...]:
    return tuple(f"localhost:{port}" for port in ports)


def test_a_run_on_two_workers_next_to_their_silos_is_the_same(
    worker_commands, free_ports, store, unbroken, tmp_path
):
    run(store, tmp_path, Execution(workers=addresses(free_ports)))
    assert_same_results(unbroken, tmp_path)


def test_a_worker_command_starts_its_worker_again_and_the_run_goes_on(
    worker_commands, free_ports, store, unbroken, tmp_path, caplog
):
    workers = Execution(workers=addresses(free_ports))
    kill_when(after_a_round(tmp_path), lambda: worker_processes(workers.workers[0]))
    run(store, tmp_path, workers)
    assert f"{workers.workers[0]} is lost" in caplog.text
    assert_same_results(unbroken, tmp_path)


def test_a_port_that_is_taken_is_told(worker_commands, free_ports, store):
    second = command("worker", f"--port={free_ports[0]}", f"--silos={store.path}")
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert errors.startswith(f"error: --port={free_ports[0]}: Address already in use")


def test_worker_commands_end_cleanly(worker_commands, free_ports):
    for process, port, number in zip(
        worker_commands, free_ports, (signal.SIGINT, signal.SIGTERM), strict=True
    ):
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert wait_until(lambda port=port: not worker_processes(f"localhost:{port}"), seconds=5)


def test_a_folder_without_silos_is_told(tmp_path):
    process = command("worker", f"--silos={tmp_path}")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith(f"error: --silos={tmp_path}: has no silo in it")


def test_wrong_workers_are_told_before_anything_starts(tmp_path):
    process = command("main", *FLAGS, "--workers=host1", f"--cache_dir={tmp_path}")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("error: --workers=host1: 'host1' is no worker; give host:port")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": ("host1:8000", ":8000")}, "':8000' is no worker"),
        ({"workers": ("host1:port",)}, "'host1:port' is no worker"),
        ({"workers": ("host1:99999",)}, "'host1:99999' is no worker"),
        ({"workers": ("a:1", "a:1")}, "the same worker twice"),
        ({"worker_retries": -1}, "--worker_retries=-1: must be 0 or larger"),
        ({"dead_worker": "ignore"}, "--dead_worker=ignore: must be move or stop"),
    ],
)
def test_wrong_values_are_told_with_their_flag(values, message):
    with pytest.raises(UserError, match=message):
        Execution(**values)


def test_the_benchmark_prints_one_line_per_number_of_workers():
    process = command("bench", "workers", "--clients=2,3", "--steps=2", "--worker_repeats=1")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    lines = output.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["2", "1"], ["2", "2"]]
    assert "the same bits" in lines[4]
    assert lines[-1].startswith("3 clients beside 2:")
