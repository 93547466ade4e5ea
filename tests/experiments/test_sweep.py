"""A sweep as a user starts it, interrupts it, and starts it again."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments import sweep_costs, sweep_folder, sweep_processes, sweep_results
from experiments.sweep_costs import Cost
from rdpcfl_tff.errors import UserError
from tests.experiments.sweep_runs import example_run, finish

SWEEP = """
# a comment
algorithms = ["rdpcfl", "local"]
datasets = ["digits"]
shifts = ["label_flip"]
epsilons = [30]
seeds = [0]
preset = "smoke"
rounds = 4
cluster_sizes = [2, 3]
num_clusters = 2
delta = 1e-3
"""
NAMES = ("rdpcfl-digits-label_flip-eps30-seed0", "local-digits-label_flip-eps30-seed0")
# It finds something else in its folder.
HOPELESS = "global-digits-label_flip-eps30-seed0"


def start(folder: pathlib.Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.sweep", str(folder / "sweep.toml"), *arguments),
            *(f"--cache_dir={folder}/cache", f"--output_dir={folder}/sweep"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_below(folder: pathlib.Path) -> list[str]:
    """The command lines of all processes that name the folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended
        if str(folder) in command:
            found.append(command)
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep that was interrupted in its first run and started again with a hopeless run more."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.toml").write_text(SWEEP)
    process = start(folder)
    while not sweep_folder.rounds_done(folder / "sweep", NAMES[0]):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not processes_below(folder), "the interrupted sweep has left nothing running"
    (folder / "sweep" / "runs" / HOPELESS).mkdir()
    (folder / "sweep" / "runs" / HOPELESS / "notes.txt").write_text("mine")
    again = start(folder, "--algorithms=global,rdpcfl,local", "--jobs=2")
    output, errors = again.communicate(timeout=600)
    return folder, again.returncode, output, errors


def test_interrupted_runs_go_on_and_all_are_finished(swept):
    folder, _, output, errors = swept
    assert "this takes about" in output and re.search(r"about .* left", errors)
    log = sweep_folder.log_path(folder / "sweep", NAMES[0]).read_text()
    assert "going on after round" in log
    table = sweep_results.load(folder / "sweep")
    assert set(table["run_folder"]) == {f"runs/{name}" for name in NAMES}
    for row in table.to_dict("records"):
        directory = folder / "sweep" / row["run_folder"]
        summary = json.loads((directory / "summary.json").read_text())
        assert row["test_accuracy_mean"] == summary["simulation_test_accuracy"]["mean"]
        assert row["rounds"] == summary["rounds"] == 4
        assert row["cluster_sizes"] == "2,3"
        assert row["hash"] == sweep_results.run_hash(directory)


def test_failures_are_told_at_the_end_and_stop_nothing(swept):
    _, code, output, errors = swept
    assert code == 1
    assert "3 runs, 3 of them to do, 2 at a time" in output
    *_, title, line = errors.strip().splitlines()
    assert title.startswith("failed: 1 (logs: ")
    assert line.startswith(f"  {HOPELESS}: error: --output_dir=") and "holds no run" in line
    assert "2 of 3 runs are finished" in output
    assert re.search(r"\| digits +\| label_flip \| 30 +\| rdpcfl", output)


def test_finished_runs_are_not_run_again(swept):
    folder, *_ = swept
    process = start(folder)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "2 runs, 0 of them to do" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds=5"], "holds a run with another rounds"),
        (["--algorithms=unknown"], "unknown"),
        (["--dataset=digits"], "--datasets"),
        (["--datasets="], "no value to vary --dataset"),
        (["--epsilons=0"], "--eps=0"),
        (["second.toml"], "one file too many"),
        (["--fallback_dataset=digits"], "--fallback_dataset"),
        (["--halt_after=2"], "--halt_after"),
        (["--jobs=0"], "jobs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line(swept, arguments, message):
    folder, *_ = swept
    process = start(folder, *arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("error: ") and message in errors, errors


def test_a_wrong_file_is_told_in_one_line(tmp_path):
    for content, message in (("no toml", "no TOML"), ("colour = 3", "colour is no flag")):
        (tmp_path / "sweep.toml").write_text(content)
        process = start(tmp_path)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1 and message in errors


def test_the_sweeps_that_we_ship_can_be_read():
    """A seed that is refused last of all ends them early."""
    folder = pathlib.Path(__file__).parents[2] / "experiments" / "sweeps"
    paths = sorted(folder.glob("*.toml"))
    assert len(paths) == 2
    for path in paths:
        done = subprocess.run(
            [sys.executable, "-m", "experiments.sweep", str(path), "--seeds=-1"],
            capture_output=True,
            text=True,
        )
        assert "--seed=-1: must be 0 or larger" in done.stderr


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no sweep"):
        sweep_folder.write_plan(tmp_path, [example_run()], ["sweep"])


def test_the_plan_is_what_was_asked_for_last(tmp_path):
    one, two = example_run(), example_run("local")
    sweep_folder.write_plan(tmp_path, [one], ["sweep"])
    assert sweep_folder.planned_runs(tmp_path) == [one.name]
    sweep_folder.write_plan(tmp_path, [one, two], ["sweep", "again"])
    assert sweep_folder.planned_runs(tmp_path) == [one.name, two.name]
    assert sweep_folder.command(tmp_path) == ["sweep", "again"]


def test_the_last_words_are_the_last_line_that_is_not_empty(tmp_path):
    (tmp_path / "logs").mkdir()
    sweep_folder.log_path(tmp_path, "run").write_text("first\r50%|\r100%|\nerror: this\n\n")
    assert sweep_folder.last_words(tmp_path, "run") == "error: this"


def test_the_forecast_counts_the_rounds_that_are_left(tmp_path):
    fresh, begun = example_run(rounds=10), example_run("local", rounds=10)
    costs = {run.name: Cost(start_seconds=5, round_seconds=2) for run in (fresh, begun)}
    directory = sweep_folder.run_folder(tmp_path, begun.name)
    directory.mkdir(parents=True)
    for saved in (3, 4):
        (directory / f"checkpoint_{saved:06d}.npz").touch()
    assert sweep_costs.forecast([fresh, begun], tmp_path, costs, jobs=1) == 5 + 20 + 5 + 12
    assert sweep_costs.forecast([fresh, begun], tmp_path, costs, jobs=2) == 2.5 + 20 + 2.5 + 12
    assert sweep_costs.forecast([fresh], tmp_path, costs, jobs=1, until_round=3) == 5 + 6


def test_a_run_has_reached_what_it_has_saved(tmp_path):
    run = example_run(rounds=10)
    directory = sweep_folder.run_folder(tmp_path, run.name)
    assert not sweep_processes.reached(tmp_path, run, 4)
    directory.mkdir(parents=True)
    (directory / "checkpoint_000004.npz").touch()
    assert sweep_processes.reached(tmp_path, run, 4)
    (directory / "checkpoint_000010.npz").touch()
    assert not sweep_processes.reached(tmp_path, run, None), "the test accuracy is still missing"
    finish(tmp_path / "other", run, 0.5)
    assert sweep_processes.reached(tmp_path / "other", run, None)


def test_no_more_runs_at_once_than_cores_and_memory_allow():
    runs = [example_run(seed=seed) for seed in range(1000)]
    assert 1 <= sweep_costs.jobs_that_fit(runs) <= len(os.sched_getaffinity(0))
    assert sweep_costs.jobs_that_fit(runs[:1]) == 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "1 minute"), (61, "2 minutes"), (7200, "2.0 hours")]
)
def test_durations_are_told_in_words(seconds, text):
    assert sweep_costs.duration(seconds) == text
