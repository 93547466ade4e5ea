"""The table of a sweep says what the runs' own files say."""

import hashlib
import math

import pandas as pd
import pytest

from experiments import sweep_results
from experiments.sweep_folder import run_folder
from rdpcfl_tff.errors import UserError
from tests.experiments.sweep_runs import example_run, finish

RUNS = (
    example_run("rdpcfl", num_clusters=4),
    example_run("local", seed=1),
    example_run("odpcfl", epsilon=math.inf),
)
ACCURACIES = (0.9, 0.1 + 0.2, 1 / 3)


@pytest.fixture
def folder(tmp_path):
    for run, accuracy in zip(RUNS, ACCURACIES, strict=True):
        finish(tmp_path, run, accuracy)
    (tmp_path / "runs" / "unfinished").mkdir()
    return tmp_path


def test_a_row_per_finished_run_with_its_config_and_summary(folder):
    sweep_results.collect(folder)
    table = sweep_results.load(folder).set_index("algorithm")
    assert len(table) == len(RUNS)
    for run, accuracy in zip(RUNS, ACCURACIES, strict=True):
        row = table.loc[run.config.algorithm]
        assert row["test_accuracy_mean"] == accuracy
        assert row["epsilon"] == row["epsilon_spent"] == run.config.epsilon
        assert row["seed"] == run.config.seed and row["cluster_sizes"] == "3,6,6,6"
        assert row["run_folder"] == f"runs/{run.name}"
    assert table.loc["rdpcfl", "num_clusters"] == 4 and math.isnan(
        table.loc["local", "num_clusters"]
    )
    assert table["exact"].dtype == bool


def test_the_hash_is_of_the_summary_as_it_is_on_disk(folder):
    table = sweep_results.collect(folder)
    directory = run_folder(folder, RUNS[1].name)
    content = (directory / "summary.json").read_bytes()
    (row,) = table[table["algorithm"] == "local"].to_dict("records")
    assert row["hash"] == hashlib.sha256(content).hexdigest()
    (directory / "summary.json").write_bytes((directory / "summary.json").read_bytes() + b" ")
    assert sweep_results.run_hash(directory) != row["hash"]


def test_both_files_hold_the_same_table(folder):
    table = sweep_results.collect(folder)
    pd.testing.assert_frame_equal(sweep_results.load(folder), table)
    from_csv = pd.read_csv(folder / "simulation_sweep.csv", float_precision="round_trip")
    assert from_csv["test_accuracy_mean"].tolist() == table["test_accuracy_mean"].tolist()
    assert from_csv.columns.tolist() == table.columns.tolist()


def test_the_text_has_mean_and_deviation_over_the_seeds(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.7)):
        finish(tmp_path, example_run("local", seed=seed), accuracy)
        finish(tmp_path, example_run("rdpcfl", seed=seed), accuracy + 0.1)
    finish(tmp_path, example_run("rdpcfl", epsilon=15.0), 0.75)
    _, _, *lines = sweep_results.as_text(sweep_results.collect(tmp_path)).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[3:-1]] for line in lines]
    others = ["0.200 ± 0.000", "0.100 ± 0.000"]
    assert rows == [
        ["3", "rdpcfl", "2", "0.700 ± 0.141", *others, "2 of 2"],
        ["3", "local", "2", "0.600 ± 0.141", *others, ""],
        ["15", "rdpcfl", "1", "0.750", "0.200", "0.100", "1 of 1"],
    ]


def test_a_run_that_was_stopped_has_no_accuracy(tmp_path):
    finish(tmp_path, example_run(), None)
    table = sweep_results.collect(tmp_path)
    assert table["test_accuracy_mean"].isna().all()
    assert "nan" in sweep_results.as_text(table)


def test_a_folder_without_a_table_is_refused(tmp_path):
    assert sweep_results.collect(tmp_path).empty
    with pytest.raises(UserError, match="no finished run"):
        sweep_results.load(tmp_path)
