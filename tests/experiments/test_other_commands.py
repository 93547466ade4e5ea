"""The commands beside `main`, as a user calls them."""

import subprocess
import sys

import pytest

from experiments import doctor
from rdpcfl_tff.federated import runtime


def run_command(name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_doctor_finds_nothing_wrong_here(tmp_path):
    done = run_command("doctor", f"--cache_dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the TFF worker starts and answers" in done.stdout
    assert "tensorflow-federated 0.87.0" in done.stdout
    assert "embedded in scikit-learn" in done.stdout
    assert done.stdout.endswith("nothing is wrong\n")


def test_doctor_names_a_broken_worker(monkeypatch):
    monkeypatch.setattr(runtime, "worker_binary", lambda: "/no/such/worker_binary")
    (problem,) = doctor._worker()
    assert problem.startswith("The TFF worker ended with exit code 127")


def test_bench_round_prints_overhead_and_memory():
    done = run_command("bench", "round", "--dataset=digits", "--steps=2", "--rounds=2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    memory = [line.split() for line in lines if line.startswith("    2 ")]
    assert [len(sizes) for sizes in memory] == [3, 2], "with the worker, and without"
    (overhead,) = (line for line in lines if line.startswith("a round without a step (overhead)"))
    assert min(float(number) for number in overhead.split()[-3:]) > 0


@pytest.mark.parametrize("command", ["bench", "figures"])
def test_a_missing_argument_is_told_in_one_line(command):
    done = run_command(command)
    assert done.returncode == 1
    assert done.stderr.startswith("error: name one")


def test_figures_refuses_a_folder_without_a_run(tmp_path):
    done = run_command("figures", str(tmp_path))
    assert done.returncode == 1
    assert "holds no finished run" in done.stderr
