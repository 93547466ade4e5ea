"""The main command as a user calls it: real processes, through a pipe."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator


def run_main(*arguments: str) -> subprocess.CompletedProcess:
    # Capturing the output is the test that nobody holds the pipe open after the end.
    return subprocess.run(
        [sys.executable, "-m", "experiments.main", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


SMALL = (
    "--dataset=digits",
    "--preset=smoke",
    "--rounds=2",
    "--cluster_sizes=2,3",
    "--num_clusters=2",
)


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory):
    """The same private run twice."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        done = run_main(
            *SMALL,
            "--eps=8",
            "--delta=1e-3",
            f"--cache_dir={folder}",
            f"--output_dir={folder}/{name}",
        )
        assert done.returncode == 0, done.stderr
        assert "epsilon 8.000" in done.stdout and "test accuracy: mean" in done.stdout
    return folder / "one", folder / "two"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_its_records(run_folders):
    folder, _ = run_folders
    summary = json.loads((folder / "summary.json").read_text())
    assert 7.9 < summary["epsilon_spent"] <= 8
    assert summary["models"] == 2
    assert [row["round"] for row in rows(folder / "metrics.csv")] == ["1", "2"]
    assert len(rows(folder / "simulation_metrics.csv")) == 2
    clients = rows(folder / "simulation_clients.csv")
    mean = np.mean([float(row["test_accuracy"]) for row in clients])
    assert summary["simulation_test_accuracy"]["mean"] == pytest.approx(mean)
    config = json.loads((folder / "config.json").read_text())
    assert config["config"]["epsilon"] == 8 and config["config"]["rounds"] == 2
    assert config["versions"]["tensorflow"] == tf.__version__
    assert (folder / "privacy.txt").read_text().count("(8.000, 0.001)-differentially private") == 1


def test_tensorboard_shows_the_same_accuracies(run_folders):
    folder, _ = run_folders
    events = event_accumulator.EventAccumulator(str(folder / "simulation_tensorboard"))
    events.Reload()
    shown = [
        tf.make_ndarray(event.tensor_proto).item()
        for event in events.Tensors("validation_accuracy/mean")
    ]
    written = [float(row["mean"]) for row in rows(folder / "simulation_metrics.csv")]
    np.testing.assert_allclose(shown, written, rtol=1e-6)


def test_the_picture_is_drawn(run_folders):
    folder, _ = run_folders
    drawn = (folder / "simulation_run.png").read_bytes()
    (folder / "simulation_run.png").unlink()
    again = subprocess.run(
        [sys.executable, "-m", "experiments.figures", str(folder)], capture_output=True, timeout=300
    )
    assert again.returncode == 0
    assert (folder / "simulation_run.png").read_bytes() == drawn


def test_what_is_stated_is_what_ran(run_folders):
    folder, _ = run_folders
    (statement,) = json.loads((folder / "privacy.json").read_text())["statements"]
    assert statement["clients"] == [0, 1, 2, 3, 4]
    # 80 train records: one full batch in round 1, ten batches of 8 in round 2.
    first, later = statement["mechanisms"]
    assert (first["times"], first["sampling_rate"]) == (1, 1.0)
    assert (later["times"], later["sampling_rate"]) == (10, 0.1)
    assert statement["public"]["records"] == 80


def test_one_seed_gives_one_result(run_folders):
    one, two = run_folders
    for name in ("summary.json", "metrics.csv", "simulation_metrics.csv", "privacy.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    with np.load(one / "models.npz") as first, np.load(two / "models.npz") as second:
        np.testing.assert_array_equal(first["models"], second["models"])


def test_without_privacy_it_says_so(tmp_path):
    done = run_main(
        *(*SMALL, "--eps=inf", "--algorithm=odpcfl"),
        *(f"--cache_dir={tmp_path}", f"--output_dir={tmp_path}/run"),
    )
    assert done.returncode == 0, done.stderr
    assert "NOT private" in done.stdout
    assert (tmp_path / "run" / "privacy.txt").read_text().count("NOT private") == 1


def test_noise_from_the_operating_system_differs_and_its_key_is_kept_apart(tmp_path):
    models = []
    for name in ("one", "two"):
        done = run_main(
            *SMALL,
            "--eps=8",
            "--delta=1e-3",
            "--noise_seed=os",
            f"--cache_dir={tmp_path}/cache",
            f"--output_dir={tmp_path}/{name}",
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{name}.noise_key").stat().st_mode & 0o777 == 0o600
        with np.load(tmp_path / name / "models.npz") as file:
            models.append(file["models"])
    assert np.abs(models[0] - models[1]).max() > 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset=emnist"], "dataset"),
        (["--data_dir=/no/such/folder", "--dataset=mnist"], "--data_dir=/no/such/folder"),
        (["--cluster_sizes=three"], "--cluster_sizes=three"),
        (["--cluster_sizes="], "--cluster_sizes"),
        (["--cluster_sizes=9,0"], "--cluster_sizes=9,0"),
        (["--cluster_sizes=1,2"], "--num_clusters"),
        (["--num_clusters=21"], "--num_clusters=21"),
        (["--num_clusters=0"], "--num_clusters=0"),
        (["--rounds=1"], "--rounds=1"),
        (["--eps_select_ratio=2"], "--eps_select_ratio=2"),
        (["--selection_ratio=0.9"], "--selection_ratio=0.9"),
        (["--selection_rounds=11", "--rounds=20"], "--selection_rounds=11"),
        (["--client_dropout=1"], "--client_dropout=1"),
        (["--checkpoint_every=0"], "checkpoint_every"),
        (["--eps=3", "--eps_select_ratio=0.9"], "lower --eps_select_ratio"),
        (["--cluster_sizes=2000"], "--cluster_sizes=2000"),
        (["--samples_per_client=100000"], "--samples_per_client=100000"),
        (["--rounds=0"], "--rounds=0"),
        (["--batch_size=0"], "--batch_size=0"),
        (["--lr=-1"], "--lr=-1"),
        (["--clip=nan"], "--clip=nan"),
        (["--eps=0"], "--eps=0"),
        (["--eps=nan"], "--eps=nan"),
        (["--eps=1", "--delta=0.5", "--rounds=2"], "--delta=0.5"),
        (["--eps=1", "--batch_size=1000000"], "a batch of 1000000"),
        (["--seed=-1"], "--seed=-1"),
        (["--rounds=many"], "rounds"),
        (["--no_such_flag=1"], "no_such_flag"),
        (["stray"], "stray"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line(tmp_path, arguments, message):
    done = run_main(
        "--dataset=digits", *arguments, f"--cache_dir={tmp_path}", f"--output_dir={tmp_path}/run"
    )
    assert done.returncode == 1
    errors = done.stderr.strip().splitlines()
    assert errors[-1].startswith("error: ") and message in errors[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists(), "nothing is left of a run that never began"


def test_a_results_folder_is_never_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    done = run_main(*SMALL, f"--cache_dir={tmp_path}/cache", f"--output_dir={tmp_path}/run")
    assert done.returncode == 1
    assert "is not empty and holds no run" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
