"""A run that is killed and started again ends as if nothing had happened."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROUNDS = 8
FLAGS = (
    "--dataset=digits",
    "--cluster_sizes=2,3,3,3",
    "--shift=label_flip",
    f"--rounds={ROUNDS}",
    "--selection_ratio=0.25",
    "--eps=30",
    "--delta=1e-3",
)


def start(folder, name, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.main", *FLAGS, *arguments),
            *(f"--cache_dir={folder}", f"--output_dir={folder}/{name}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(folder, name, *arguments: str) -> str:
    process = start(folder, name, *arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def assert_same_results(one, two):
    for name in (
        "summary.json",
        "metrics.csv",
        "assignments.csv",
        "mixture.json",
        "simulation_metrics.csv",
        "simulation_clients.csv",
    ):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    with np.load(one / "models.npz") as first, np.load(two / "models.npz") as second:
        np.testing.assert_array_equal(first["models"], second["models"])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    finish(folder, "unbroken")
    return folder


def test_a_run_killed_in_each_stage_ends_as_the_unbroken_one(unbroken):
    stages = []
    for last_round in (1, 6):
        process = start(unbroken, "broken")
        # Killed as soon as the round is saved, in the middle of the next one.
        while not (unbroken / "broken" / f"checkpoint_{last_round:06d}.npz").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        lines = (unbroken / "broken" / "metrics.csv").read_text().splitlines()
        stages.append(lines[-1].split(",")[1])
    assert len(set(stages)) == 2, "each kill should meet another stage"
    assert "going on after round" in finish(unbroken, "broken")
    assert_same_results(unbroken / "unbroken", unbroken / "broken")


def test_a_halted_run_goes_on_to_the_end_of_the_unbroken_one(unbroken):
    told = finish(unbroken, "halted", "--halt_after=3", "--checkpoint_every=2")
    assert "halted: round 3 of 8 is reached" in told
    lines = (unbroken / "halted" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["round", "1", "2", "3"]
    assert not (unbroken / "halted" / "summary.json").exists()
    assert "going on after round 3" in finish(unbroken, "halted")
    assert_same_results(unbroken / "unbroken", unbroken / "halted")


def test_a_finished_run_is_not_run_again(unbroken):
    before = (unbroken / "unbroken" / "summary.json").stat().st_mtime_ns
    assert "it is finished" in finish(unbroken, "unbroken")
    assert (unbroken / "unbroken" / "summary.json").stat().st_mtime_ns == before


@pytest.mark.statistical
def test_a_run_killed_at_twenty_random_instants_ends_as_the_unbroken_one(unbroken):
    instants = random.Random(0)
    for _ in range(20):
        process = start(unbroken, "random")
        time.sleep(instants.uniform(1, 20))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(unbroken, "random")
    assert_same_results(unbroken / "unbroken", unbroken / "random")
    assert json.loads((unbroken / "random" / "summary.json").read_text())["rounds"] == ROUNDS
