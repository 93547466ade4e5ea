"""A folder of one's own through the commands: train, export, predict, as a user calls them."""

import csv
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import own_folder
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.training import driver
from tests.experiments import own_folders

FLAGS = ("--preset=smoke", "--rounds=2", "--num_clusters=2", "--batch_size=10")


def call(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=300
    )


def train(folder, *flags: str, name: str = "run") -> subprocess.CompletedProcess:
    return call(
        "experiments.main",
        f"--dataset=folder:{folder}",
        f"--cache_dir={folder.parent}/cache",
        f"--output_dir={folder.parent}/{name}",
        *FLAGS,
        *flags,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> pathlib.Path:
    """A finished run on four clients of which one has a budget, and another a batch, of its own."""
    folder = tmp_path_factory.mktemp("own") / "silos"
    own_folders.write(folder, {"a.npz": {"epsilon": 20}, "c.npz": {"batch_size": 7, "delta": 2e-3}})
    done = train(folder, "--eps=50", "--delta=1e-3")
    assert done.returncode == 0, done.stderr
    assert "test accuracy: mean" in done.stdout and "wrong cluster" not in done.stdout
    return folder.parent / "run"


def read_json(path):
    return json.loads(path.read_text())


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_every_client_has_its_own_promise(run):
    statements = read_json(run / "privacy.json")["statements"]
    by_client = {client: one for one in statements for client in one["clients"]}
    epsilons = {client: one["epsilon"]["rdp"] for client, one in by_client.items()}
    assert 19.9 < epsilons[0] <= 20
    assert all(49.9 < epsilons[client] <= 50 for client in (1, 2, 3))
    assert [by_client[client]["delta"] for client in range(4)] == [1e-3, 1e-3, 2e-3, 1e-3]
    assert [by_client[client]["public"]["batch_size"] for client in range(4)] == [10, 10, 7, 10]
    assert [by_client[client]["public"]["records"] for client in range(4)] == [49, 63, 56, 70]


def test_without_true_clusters_their_part_is_left_out(run):
    summary = read_json(run / "summary.json")
    assert "simulation_partition" not in summary
    assert set(summary["simulation_test_accuracy"]) == {"mean", "worst"}
    assert "not known" in summary["simulation_note"]
    assert set(summary["assignment"]) == set(own_folders.SIZES)
    assert "true_cluster" not in rows(run / "simulation_clients.csv")[0]
    config = read_json(run / "config.json")["config"]
    assert config["model"] == "cnn" and len(config["data_sha256"]) == 64


def test_an_exported_model_gives_the_accuracy_of_the_summary_in_a_fresh_process(run):
    exported = call("experiments.export", str(run))
    assert exported.returncode == 0, exported.stderr
    summary = read_json(run / "summary.json")
    accuracies = []
    for client, name in enumerate(own_folders.SIZES):
        with np.load(run.parent / "silos" / name) as arrays:
            np.savez(run.parent / "records.npz", x=arrays["x_test"], y=arrays["y_test"])
        done = call(
            "experiments.predict",
            f"--model={run}/exported/cluster_{summary['assignment'][name]}",
            f"--data={run.parent}/records.npz",
            f"--output={run.parent}/predictions.csv",
        )
        assert done.returncode == 0, done.stderr
        predictions = [int(row["class"]) for row in rows(run.parent / "predictions.csv")]
        with np.load(run.parent / "records.npz") as arrays:
            accuracies.append(np.mean(predictions == arrays["y"]))
        assert f"accuracy {accuracies[-1]:.4f}" in done.stdout
        expected = float(rows(run / "simulation_clients.csv")[client]["test_accuracy"])
        assert accuracies[-1] == pytest.approx(expected)
    assert np.mean(accuracies) == pytest.approx(summary["simulation_test_accuracy"]["mean"])


def test_the_card_says_who_and_what_is_promised_and_no_accuracy(run):
    folder = run / "exported"
    if not folder.exists():
        assert call("experiments.export", str(run)).returncode == 0
    card = (folder / "MODEL_CARD.md").read_text()
    assert (run / "privacy.txt").read_text().strip() in card
    assert all(name in card for name in own_folders.SIZES)
    clients = rows(run / "simulation_clients.csv")
    metrics = (folder / "simulation_metrics.md").read_text()
    for model in {row["model"] for row in clients}:
        accuracy = np.mean([float(r["test_accuracy"]) for r in clients if r["model"] == model])
        assert f"{accuracy:.4f}" in metrics and f"{accuracy:.4f}" not in card


def test_the_run_goes_on_only_with_the_same_records(run):
    folder = run.parent / "silos"
    again = train(folder, "--eps=50", "--delta=1e-3")
    assert again.returncode == 0 and "is finished" in again.stderr
    with np.load(folder / "d.npz") as arrays:
        changed = dict(arrays)
    before = (folder / "d.npz").read_bytes()
    changed["y_train"] = changed["y_train"][::-1]
    np.savez(folder / "d.npz", **changed)
    refused = train(folder, "--eps=50", "--delta=1e-3")
    (folder / "d.npz").write_bytes(before)
    assert refused.returncode == 1 and "holds another run (data_sha256 was" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shift=rotation"], "--shift is for published data sets"),
        (["--cluster_sizes=2,2"], "--cluster_sizes is for published data sets"),
        (["--model=transformer"], "--model=transformer is unknown"),
        (["--num_clusters=4"], "--num_clusters=4: must be from 1 to 3"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_do_not_fit_are_told_in_one_line(tmp_path, flags, message):
    own_folders.write(tmp_path / "silos", {})
    done = train(tmp_path / "silos", *flags)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        ({}, {"algorithm": "odpcfl"}, "give every client a true_cluster"),
        ({}, {"algorithm": "ifca"}, "ifca needs --num_clusters"),
        ({}, {"batch_size": 60}, "client a.npz: a batch of 60 from 49"),
        ({"b.npz": {"batch_size": 64}}, {}, "client b.npz: a batch of 64 from 63"),
        ({}, {"epsilon": 3, "delta": 0.015}, "client d.npz: --delta=0.015"),
        ({"b.npz": {"epsilon": 3}}, {}, "give --eps"),
        ({}, {"model": "resnet18:none"}, "No module named 'resnet18'"),
    ],
)
def test_settings_that_do_not_fit_the_clients(tmp_path, clients, settings, message):
    own_folders.write(tmp_path / "silos", clients)
    store = own_folder.open_folder(tmp_path / "silos", 0, tmp_path / "stores")
    defaults = {"cluster_sizes": (), "epsilon": math.inf, "rounds": 2, "batch_size": 10}
    config = RunConfig(**defaults | settings)
    with pytest.raises(UserError, match=message):
        driver.run(config, store, tmp_path / "run", [])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiments.predict", "--data=x.npz"], "--model=: no such file"),
        (["experiments.predict", "--model=.", "--data=."], "--model=.: no exported model"),
        (["experiments.export"], "name one results folder"),
        (["experiments.export", "."], "holds no finished run"),
        (["experiments.example_folder", "tests"], "is there already"),
    ],
)
def test_the_other_commands_tell_what_is_wrong(arguments, message):
    done = call(*arguments)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_the_example_has_eleven_clients_of_unequal_sizes_in_three_clusters(tmp_path):
    done = call("experiments.example_folder", str(tmp_path / "silos"))
    assert done.returncode == 0, done.stderr
    clients = read_json(tmp_path / "silos" / "manifest.json")["clients"]
    clusters = [client["true_cluster"] for client in clients.values()]
    assert sorted(map(clusters.count, set(clusters))) == [2, 4, 5]
    sizes = []
    for name in clients:
        with np.load(tmp_path / "silos" / name) as arrays:
            sizes.append(len(arrays["y"]))
    assert len(set(sizes)) > 5
    assert f"--dataset=folder:{tmp_path / 'silos'}" in done.stdout
