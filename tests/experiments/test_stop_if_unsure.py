"""A run that ends after a doubtful round 1, and one that goes on from there: the real main."""

import json
import subprocess
import sys

import numpy as np
import pytest

SMALL = (
    "--dataset=digits",
    "--preset=smoke",
    "--rounds=3",
    "--cluster_sizes=2,3",
    "--num_clusters=2",
    "--delta=1e-3",
)


def run_main(folder, name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            *(sys.executable, "-m", "experiments.main", *SMALL, *arguments),
            *(f"--cache_dir={folder}/cache", f"--output_dir={folder}/{name}"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Much noise: the clusters are in doubt."""
    folder = tmp_path_factory.mktemp("stop")
    done = run_main(folder, "run", "--eps=1", "--stop_if_unsure")
    assert done.returncode == 0, done.stderr
    return folder, done


def test_it_says_why_it_stopped_and_what_is_spent(stopped):
    folder, done = stopped
    told = done.stdout + done.stderr
    summary = read(folder / "run" / "summary.json")
    assert "NOT sure" in told and "larger --eps" in told
    assert "stopped after round 1" in done.stdout
    assert f"has spent epsilon {summary['epsilon_spent']:.3f} of 1 at delta 0.001" in done.stdout


def test_its_records_are_those_of_one_round(stopped):
    folder, _ = stopped
    summary = read(folder / "run" / "summary.json")
    assert summary["stopped"] is True and summary["rounds"] == 1
    assert 0 < summary["epsilon_spent"] < 1
    assert summary["simulation_test_accuracy"] is None
    lines = (folder / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].endswith(f",{summary['epsilon_spent']}")
    assert read(folder / "run" / "mixture.json")["sure"] is False


def test_the_same_command_again_changes_nothing(stopped):
    folder, _ = stopped
    before = (folder / "run" / "summary.json").stat().st_mtime_ns
    again = run_main(folder, "run", "--eps=1", "--stop_if_unsure")
    assert again.returncode == 0, again.stderr
    assert "stopped after round 1" in again.stdout
    assert (folder / "run" / "summary.json").stat().st_mtime_ns == before


def test_without_the_flag_it_goes_on_as_if_it_had_never_stopped(stopped):
    folder, _ = stopped
    gone_on, unbroken = (run_main(folder, name, "--eps=1") for name in ("run", "unbroken"))
    for done in (gone_on, unbroken):
        assert done.returncode == 0, done.stderr
    assert "going on after round 1" in gone_on.stdout + gone_on.stderr
    for name in ("summary.json", "metrics.csv", "mixture.json"):
        assert (folder / "run" / name).read_bytes() == (folder / "unbroken" / name).read_bytes()
    models = [np.load(folder / name / "models.npz")["models"] for name in ("run", "unbroken")]
    np.testing.assert_array_equal(*models)


def test_a_sure_run_does_not_stop_and_has_its_own_noise_in_round_1(tmp_path):
    done = run_main(
        *(tmp_path, "run", "--eps=30", "--first_round_noise_multiplier=0.5"),
        *("--stop_if_unsure", "--cluster_sizes=4,5", "--samples_per_client=280"),
    )
    assert done.returncode == 0, done.stderr
    assert "sure: 2 clusters detected" in done.stdout + done.stderr
    assert read(tmp_path / "run" / "summary.json")["stopped"] is False
    (statement,) = read(tmp_path / "run" / "privacy.json")["statements"]
    first, later = statement["mechanisms"][:2]
    assert first["noise_multiplier"] == 0.5
    assert later["noise_multiplier"] != first["noise_multiplier"]
    assert statement["epsilon"]["rdp"] <= 30


def test_auto_asks_the_plan(tmp_path):
    done = run_main(tmp_path, "run", "--eps=8", "--first_round_noise_multiplier=auto")
    assert done.returncode == 0, done.stderr
    assert (
        read(tmp_path / "run" / "config.json")["config"]["first_round_noise_multiplier"] == "auto"
    )
    (statement,) = read(tmp_path / "run" / "privacy.json")["statements"]
    public = statement["public"]
    assert public["first_round_noise_multiplier"] >= public["noise_multiplier"] - 1e-3
    assert 7.9 < statement["epsilon"]["rdp"] <= 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--first_round_noise_multiplier=much", "--eps=1"], "must be a number or auto"),
        (["--first_round_noise_multiplier=-1", "--eps=1"], "must be above 0"),
        (["--first_round_noise_multiplier=nan", "--eps=1"], "must be above 0"),
        (["--first_round_noise_multiplier=5", "--eps=inf"], "give --eps"),
        (["--first_round_noise_multiplier=0.01", "--eps=1"], "raise --first_round_noise"),
        (["--first_round_noise_multiplier=5", "--eps=1", "--algorithm=ifca"], "only --algorithm"),
        (
            ["--first_round_noise_multiplier=auto", "--eps=1", "--first_batch_size=8"],
            "leave out --first_batch_size",
        ),
        (["--stop_if_unsure", "--algorithm=local"], "--stop_if_unsure"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line(tmp_path, arguments, message):
    done = run_main(tmp_path, "run", *arguments)
    assert done.returncode == 1
    errors = done.stderr.strip().splitlines()
    assert errors[-1].startswith("error: ") and message in errors[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
