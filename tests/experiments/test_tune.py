"""Tuning as a user calls it: the best of the grid is found, and its cost is told."""

import csv
import json
import subprocess
import sys

import pandas as pd
import pytest

from experiments import sweep_folder
from rdpcfl_tff.privacy import tuning

FLAGS = (
    *("--dataset=digits", "--algorithm=global", "--shift=label_flip", "--preset=smoke"),
    *("--rounds=4", "--cluster_sizes=2,3", "--eps=30", "--delta=1e-3"),
)
# So large a step must lose against a sensible one.
GRID = ("--learning_rates=50,0.05", "--clip_norms=1")


def tune(folder, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            *(sys.executable, "-m", "experiments.tune", *FLAGS, *GRID, *arguments),
            *(f"--cache_dir={folder}/cache", f"--output_dir={folder}/tune"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    done = tune(folder, "--halving")
    assert done.returncode == 0, done.stderr
    return folder / "tune", done.stdout


def accuracies(folder, name: str) -> dict[int, float]:
    path = sweep_folder.run_folder(folder, name) / "simulation_metrics.csv"
    with open(path, newline="") as file:
        return {int(row["round"]): float(row["mean"]) for row in csv.DictReader(file)}


def test_halving_lets_only_the_better_half_go_on(tuned):
    folder, output = tuned
    good, bad = (f"global-digits-label_flip-eps30-seed0-lr{lr}-clip1" for lr in ("0.05", "50"))
    assert sweep_folder.finished(folder, good) and not sweep_folder.finished(folder, bad)
    assert set(accuracies(folder, bad)) == {1, 2}
    assert accuracies(folder, good)[2] > accuracies(folder, bad)[2]
    assert "best: --lr=0.05 --clip=1" in output


def test_the_table_has_every_comparison(tuned):
    folder, _ = tuned
    table = pd.read_csv(folder / "simulation_tuning.csv", float_precision="round_trip")
    assert table["round"].tolist() == [2, 2, 4]
    assert table["lr"].tolist() == [0.05, 50, 0.05]
    for row in table.to_dict("records"):
        measured = accuracies(folder, row["run"])[row["round"]]
        assert row["simulation_validation_accuracy"] == measured


def test_the_cost_of_tuning_is_told(tuned):
    folder, output = tuned
    told = (folder / "simulation_tuning_privacy.txt").read_text()
    assert told in output
    name = "global-digits-label_flip-eps30-seed0-lr0.05-clip1"
    path = sweep_folder.run_folder(folder, name) / "privacy.json"
    (statement,) = json.loads(path.read_text())["statements"]
    words = " ".join(told.split())
    assert "is not accounted" in words and "not protected at all" in words
    for epsilon in (tuning.epsilon_of_all(statement, 2), tuning.epsilon_of_best(statement, 2)):
        # Rounded up to two decimals.
        assert f"epsilon {epsilon + 0.005:.2f} at delta 0.001" in words


def test_halving_stops_where_the_accuracy_is_measured():
    """In a process of its own, because each command has its own flags."""
    script = (
        "from experiments.tune import halving_rounds as h;"
        "print(h(200, 1, 40), h(12, 3, 40), h(10, 2, 2), h(1, 1, 8), h(10, 1, 1))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[4, 7, 13, 25, 50, 100] [3, 6] [6] [] []", done.stderr


@pytest.mark.parametrize(
    ("argument", "message"),
    [("--lr=1", "--learning_rates"), ("--clip_norms=0", "--clip=0"), ("stray", "stray")],
)
def test_bad_input_is_told_in_one_line(tmp_path, argument, message):
    done = tune(tmp_path, argument)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and message in done.stderr
