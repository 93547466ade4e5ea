"""The worker ends with Python, however Python ends; one that dies or hangs is started again."""

import logging
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from rdpcfl_tff.federated import runtime
from tests.federated.worker_processes import kill_when, wait_until, worker_processes

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


def obey_ctrl_c():
    """In a script's background, where tests may run, Ctrl-C is ignored, and children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(ending: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(ending=ending)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=obey_ctrl_c,
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
    assert wait_until(lambda: not worker_processes(address), seconds=5)


@tff.tensorflow.computation(np.str_)
def slow_count(started):
    """Says that it has started, and counts for a second or two."""
    with tf.control_dependencies([tf.io.write_file(started, "")]):
        (count,) = tf.while_loop(lambda i: i < 200_000, lambda i: [i + 1], [tf.constant(0)])
    return count


def test_a_worker_that_dies_in_a_call_is_started_again(tmp_path, caplog):
    started = tmp_path / "started"
    with runtime.local_worker() as worker:
        killed = worker.address
        kill_when(started.exists, lambda: worker_processes(killed))
        with caplog.at_level(logging.INFO, "rdpcfl_tff"):
            assert slow_count(str(started)) == 200_000
        assert worker.address != killed
        assert worker_processes(worker.address) and not worker_processes(killed)
        (line,) = caplog.messages
        assert "It was killed" in line and "1 of 2 retries left" in line
    assert not worker_processes(worker.address)


def test_a_worker_that_dies_too_often_ends_the_run(tmp_path):
    with runtime.local_worker(runtime.RuntimeConfig(retries=0)) as worker:
        started = tmp_path / "started"
        kill_when(started.exists, lambda: worker_processes(worker.address))
        with pytest.raises(runtime.WorkerError, match=r"(?s)It was killed.*worker_retries=0"):
            slow_count(str(started))


def test_a_worker_that_hangs_is_replaced(caplog):
    config = runtime.RuntimeConfig(idle_seconds=2)
    with runtime.local_worker(config) as worker:
        (pid,) = worker_processes(worker.address)
        os.kill(pid, signal.SIGSTOP)
        assert tff.tensorflow.computation(lambda: 1)() == 1
        assert "it has done nothing for 2 s" in caplog.text
        assert pid not in worker_processes(worker.address)


def test_an_error_in_a_computation_is_told_and_not_repeated(tmp_path, worker, caplog):
    @tff.tensorflow.computation(np.str_)
    def read(path):
        return tf.io.read_file(path)

    with pytest.raises(runtime.WorkerError, match="no_such_silo"):
        read(str(tmp_path / "no_such_silo"))
    assert not caplog.messages
    assert tff.tensorflow.computation(lambda: 1)() == 1


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
