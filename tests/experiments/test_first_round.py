"""Stage 1 alone, as a user calls it, and that it is what a real first round does."""

import csv
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments.first_updates import FirstRound, noised_updates
from rdpcfl_tff.algorithms.base import LocalTraining
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.clustering.mixture import principal_components
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.privacy import accounting, clipping, dp_sgd, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.training import assembly

CLIENTS = 21
# What `experiments.main --dataset=digits --shift=rotation --seed=0` runs with.
CONFIG = RunConfig(
    algorithm="rdpcfl", dataset="digits", rounds=20, learning_rate=0.05, clip_norm=1.0
)


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def first_round(folder, name: str, *arguments: str) -> subprocess.CompletedProcess:
    return run_python(
        *("-m", "experiments.first_round", "--datasets=digits", "--shifts=rotation"),
        *("--seeds=1", "--noise_seeds=2", "--eps=3,1000", *arguments),
        *(f"--cache_dir={folder}/cache", f"--output_dir={folder}/{name}"),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same measurement twice: the second finds the first one's sums in the cache."""
    folder = tmp_path_factory.mktemp("first_round")
    for name in ("one", "two"):
        done = first_round(folder, name)
        assert done.returncode == 0, done.stderr
        assert "| digits | rotation | paper |" in done.stdout
    return folder


@pytest.fixture(scope="module")
def store(folder):
    (path,) = (folder / "cache" / "silos").glob("digits-*")
    return SiloStore.open(path)


@pytest.fixture(scope="module")
def sums(folder):
    (path,) = (folder / "cache" / "first_round").glob("simulation_digits-rotation-*-sums-*.float32")
    return np.fromfile(path, np.float32).reshape(CLIENTS, -1)


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_there_is_a_row_for_every_draw_and_mixture(folder):
    written = rows(folder / "one" / "simulation_first_round.csv")
    keys = [(float(r["epsilon"]), int(r["noise_seed"]), r["mixture"]) for r in written]
    assert keys == [
        (eps, seed, mixture)
        for eps in (3, 1000)
        for seed in (0, 1)
        for mixture in ("default", "paper")
    ]
    assert len({row["mss"] for row in written}) == len(keys), "every row has noise of its own"


def test_little_noise_shows_the_clusters_and_much_noise_hides_them(folder):
    exact = {
        (row["epsilon"], row["exact"])
        for row in rows(folder / "one" / "simulation_first_round.csv")
        if row["mixture"] == "default"
    }
    assert exact == {("3.0", "False"), ("1000.0", "True")}


def test_the_table_sums_up_the_rows(folder):
    written = rows(folder / "one" / "simulation_first_round.csv")
    cells = []
    for epsilon in ("3.0", "1000.0"):
        cell = [r for r in written if r["epsilon"] == epsilon and r["mixture"] == "default"]
        exact, right = (
            100 * np.mean([row[column] == "True" for row in cell])
            for column in ("exact", "right_number")
        )
        assert [r["right_number"] == "True" for r in cell] == [
            r["chosen_clusters"] == "4" for r in cell
        ]
        mss = np.median([float(row["mss"]) for row in cell])
        cells.append(f"{exact:.0f} / {right:.0f} / {mss:.1f}")
    table = (folder / "one" / "simulation_first_round.md").read_text()
    assert f"| digits | rotation | default | {' | '.join(cells)} |" in table


def test_cached_sums_give_the_same_rows(folder):
    one, two = (folder / name / "simulation_first_round.csv" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_the_noise_is_that_of_the_whole_runs_budget(folder, store):
    schedule = accounting.Schedule(
        records=store.client_sizes["train"][0],
        rounds=20,
        batch_size=32,
        first_batch_size=store.client_sizes["train"][0],
        selections=2,
        epsilon_select=0.09,
    )
    expected = accounting.noise_multiplier(schedule, epsilon=3.0, delta=1e-4)
    row = rows(folder / "one" / "simulation_first_round.csv")[0]
    assert float(row["noise_multiplier"]) == pytest.approx(expected, rel=1e-6)


def test_the_cached_sum_is_what_the_real_round_sums_up(sums, store):
    model = assembly.model_of(CONFIG, store)
    learning_rate = 10.0
    for client in (0, CLIENTS - 1):
        images, labels = store.read(client, "train")
        assert len(labels) % dp_sgd.LARGEST_CHUNK != 0, "the last chunk should be filled up"
        task = dp_sgd.LocalTask(
            records=tf.constant(len(labels)),
            batch_size=tf.constant(len(labels)),
            steps=tf.constant(1),
            learning_rate=tf.constant(learning_rate),
            clip_norm=tf.constant(1.0),
            noise_multiplier=tf.constant(0.0),
            seed=tf.constant([1, 2]),
        )
        update = tf.function(dp_sgd.train)(
            clipping.fast_engine(model),
            tf.constant(model.initial_parameters),
            tf.constant(images),
            tf.constant(labels.astype(np.int32)),
            task,
            RecordFormat.of(store).scale,
            private=True,
        )
        expected = -learning_rate / len(labels) * sums[client]
        assert np.abs(expected).max() > 1e-2
        np.testing.assert_allclose(update, expected, rtol=0, atol=1e-6)


def test_an_update_is_the_averaged_sum_and_noise():
    schedules = tuple(
        accounting.Schedule(records=n, rounds=2, batch_size=10, first_batch_size=n)
        for n in (100, 400)
    )
    plan = PrivacyPlan((1.0,) * 2, (1e-4,) * 2, schedules, (2.0, 4.0))
    config = RunConfig(algorithm="rdpcfl", dataset="digits", learning_rate=0.5, clip_norm=3.0)
    sums = np.full((2, 200_000), 1000, np.float32)
    updates = noised_updates(sums, plan, config, np.random.default_rng(0))
    # -(lr / b1) * 1000, and lr / b1 * c * z.
    np.testing.assert_allclose(updates.mean(axis=1), [-5.0, -1.25], atol=1e-3)
    np.testing.assert_allclose(updates.std(axis=1), [0.03, 0.015], rtol=0.01)


@pytest.fixture(scope="module")
def round_1(folder, store):
    return FirstRound(CONFIG, store, folder / "cache" / "first_round")


def test_the_first_draw_of_a_smaller_batch_is_the_run_of_this_seed(round_1, store, worker):
    plan = round_1.plan(epsilon=5.0, first_batch_size=16)
    federation = Federation(
        store.client_directories,
        RecordFormat.of(store),
        round_1.engine,
        plan,
        CONFIG.learning_rate,
        CONFIG.clip_norm,
        key=randomness.run_key(CONFIG.seed),
    )
    expected = federation.updates(federation.initial_parameters, round_number=1)
    updates = round_1.updates(plan, draw=0)
    assert np.abs(updates).max() > 1e-2
    np.testing.assert_allclose(updates, expected, rtol=0, atol=1e-6)
    assert np.abs(round_1.updates(plan, draw=1) - expected).max() > 1e-2


def test_every_plan_has_trainings_of_its_own(round_1):
    one, two = (round_1.plan(epsilon=5.0, first_batch_size=size) for size in (16, 32))
    quiet = dataclasses.replace(
        one, noise_multipliers=(0.0,) * CLIENTS, first_round_noise_multipliers=()
    )
    updates = [round_1.trained_updates(plan, 0, clients=[0, 5]) for plan in (one, two, quiet)]
    assert all(update.shape == (2, round_1.num_parameters) for update in updates)
    spread = [float(update.std()) for update in updates]
    assert spread[0] > spread[1] > spread[2]
    again = round_1.trained_updates(one, 0, clients=[0, 5])
    np.testing.assert_array_equal(updates[0], again)
    np.testing.assert_array_equal(updates[0], round_1.updates(one, 0)[[0, 5]])


def test_a_smaller_first_batch_is_measured_too(folder):
    done = first_round(folder, "smaller", "--first_batch_size=64")
    assert done.returncode == 0, done.stderr
    smaller, full = (
        rows(folder / name / "simulation_first_round.csv") for name in ("smaller", "one")
    )
    assert len(smaller) == len(full)
    # Round 1 costs less with a smaller batch.
    assert float(smaller[0]["noise_multiplier"]) < float(full[0]["noise_multiplier"])


@pytest.mark.parametrize("mixture_mode", ["default", "paper"])
def test_principal_components_cluster_as_the_updates_do(sums, mixture_mode):
    algorithm = RDPCFL(
        training=LocalTraining(rounds=20, local_epochs=1, batch_size=32),
        first_batch_size=None,
        num_clusters=None,
        candidates=(3, 4, 5),
        mixture_mode=mixture_mode,
        selection_rounds=2,
        epsilon_select=1.0,
        seed=0,
    )
    whole = algorithm.cluster(sums)
    small = algorithm.cluster(principal_components(sums).coordinates)
    assert small.count.p_value == whole.count.p_value
    np.testing.assert_allclose(small.responsibilities, whole.responsibilities, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets=digits,emnist"], "--datasets=digits,emnist"),
        (["--datasets="], "--datasets="),
        (["--shifts=blur"], "--shifts=blur"),
        (["--eps=3,x"], "--eps=3,x"),
        (["--eps=0"], "--eps=0"),
        (["--eps=inf"], "--eps=inf"),
        (["--eps="], "--eps="),
        (["--seeds=0"], "--seeds=0"),
        (["--noise_seeds=0"], "--noise_seeds=0"),
        (["--first_batch_size=0"], "--first_batch_size=0"),
        (["--samples_per_client=1"], "--samples_per_client=1"),
        (["--samples_per_client=100000"], "--samples_per_client=100000"),
        (["stray"], "stray"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line(tmp_path, arguments, message):
    done = first_round(tmp_path, "run", *arguments)
    assert done.returncode == 1
    assert message in done.stderr.strip().splitlines()[-1]
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_results_folder_is_never_overwritten(folder):
    done = first_round(folder, "one")
    assert done.returncode == 1
    assert "is not empty: choose another folder" in done.stderr
