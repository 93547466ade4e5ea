"""The worker ends with Python, however Python ends; a worker that fails is explained."""

import os
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from rdpcfl_tff.federated import runtime

# Starts a worker, says which, does what the test asks for, and calls TFF once more after that.
PROGRAM = """
import sys, time
import tensorflow_federated as tff
from rdpcfl_tff.federated import runtime
with runtime.local_worker() as worker:
    print(worker.address, flush=True)
    {ending}
try:
    tff.tensorflow.computation(lambda: 1)()
except runtime.WorkerError as error:
    print(error)
"""


def worker_processes(address: str) -> list[int]:
    port = f"--port={address.rpartition(':')[2]}".encode()
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"worker_binary") and port in arguments:
            found.append(int(entry))
    return found


def wait_until_gone(address: str, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while worker_processes(address):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def start(ending: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(ending=ending)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    return process, address


@pytest.mark.parametrize(
    ("ending", "code", "last_words"),
    [("pass", 0, "No TFF worker runs"), ("raise ValueError", 1, "")],
)
def test_no_worker_is_left_when_python_ends(ending, code, last_words):
    process, address = start(ending)
    # communicate() returns only when nobody holds the pipe open any more.
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert not worker_processes(address)
    assert output.startswith(last_words)
    assert "Exception ignored" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_is_left_when_python_is_killed(number):
    process, address = start("time.sleep(600)")
    assert worker_processes(address)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert wait_until_gone(address)


def test_a_worker_that_dies_is_reported_and_not_retried_for_ever():
    with runtime.local_worker() as worker:
        (pid,) = worker_processes(worker.address)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(runtime.WorkerError, match="It was killed"):
            tff.tensorflow.computation(lambda: 1)()


def fake_worker(tmp_path, script: str):
    path = tmp_path / "worker_binary"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo broken library; exit 7", "exit code 7(.|\n)*broken library"),
        ("echo still loading; exec sleep 60", "did not answer within 1 s(.|\n)*still loading"),
    ],
)
def test_a_worker_that_does_not_come_up_is_explained(tmp_path, monkeypatch, script, message):
    monkeypatch.setattr(runtime, "worker_binary", lambda: fake_worker(tmp_path, script))
    config = runtime.RuntimeConfig(start_seconds=1.0)
    with pytest.raises(runtime.WorkerError, match=message), runtime.local_worker(config):
        pass


def test_computations_run_on_the_worker(worker):
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(values)

    assert total([1, 2, 3]) == 6
