"""The plan as a user calls it, before any training, and its check against real first rounds."""

import csv
import json
import subprocess
import sys

import pytest

from rdpcfl_tff.algorithms.base import LocalTraining
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.privacy import accounting


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def run_plan(folder, *arguments: str) -> subprocess.CompletedProcess:
    return run_python("-m", "experiments.plan", *arguments, f"--output_dir={folder}/plan")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    done = run_plan(
        folder, "--clients=12", "--clusters=3", "--records=3000", "--eps=4", "--optimize"
    )
    assert done.returncode == 0, done.stderr
    return folder / "plan", done.stdout


def test_what_is_planned_is_what_a_run_accounts_for(plan):
    folder, _ = plan
    schedule = RDPCFL(
        training=LocalTraining(rounds=200, local_epochs=1, batch_size=32),
        first_batch_size=None,
        num_clusters=None,
        candidates=(2, 3),
        mixture_mode="default",
        selection_rounds=20,
        epsilon_select=0.03 * 4,
        seed=0,
    ).schedule(3000)
    runs = json.loads((folder / "plan.json").read_text())["runs"]
    shared, proposed = runs["as given"], runs["proposed"]
    z = accounting.noise_multiplier(schedule, 4.0, 1e-4)
    assert shared["noise multiplier, later rounds"] == z == shared["noise multiplier, round 1"]
    first = proposed["noise multiplier, round 1"]
    assert proposed["noise multiplier, later rounds"] == accounting.noise_multiplier(
        schedule, 4.0, 1e-4, first
    )
    assert proposed["noise multiplier, later rounds"] < 0.9 * z


def test_the_report_says_what_is_in_the_files(plan):
    folder, output = plan
    report = (folder / "plan.txt").read_text()
    assert report in output
    content = json.loads((folder / "plan.json").read_text())
    assert f"from N = {content['limits']['smallest N']} on" in report
    assert f"{content['runs']['as given']['share of the RDP: round 1']:.0%}" in report
    first = content["runs"]["proposed"]["noise multiplier, round 1"]
    assert f"--first_round_noise_multiplier={first:.4g}" in report
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    with open(folder / "plan.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {float(row["epsilon"]) for row in rows} == {2.0, 4.0, 8.0}
    at_the_plan = [r for r in rows if (r["epsilon"], r["records"]) == ("4.0", "3000")]
    assert float(at_the_plan[0]["mss"]) == content["runs"]["as given"]["expected MSS"]


def test_hopeless_plans_say_so(tmp_path):
    done = run_plan(
        *(tmp_path, "--clients=8", "--records=100", "--eps=1", "--signal=0.01"),
        *("--rounds=20", "--optimize"),
    )
    assert done.returncode == 0, done.stderr
    assert "from N = no N below 1/delta on" in done.stdout
    assert "no batch size and no noise of round 1 makes it work" in done.stdout


def test_forecast_and_first_rounds_agree_on_digits(tmp_path):
    done = run_python(
        *("-m", "experiments.plan_check", "--dataset=digits", "--proxy=digits", "--records=190"),
        *("--eps=3,1000", "--batch_sizes=32", "--seeds=1", "--noise_seeds=1"),
        *(f"--cache_dir={tmp_path}/cache", f"--output_dir={tmp_path}/check"),
    )
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "check" / "simulation_plan_check.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["shift"], float(row["epsilon"])) for row in rows] == [
        (shift, epsilon) for shift in ("rotation", "label_flip") for epsilon in (3.0, 1000.0)
    ]
    assert [row["exact"] for row in rows] == ["False", "True"] * 2
    assert [float(row["forecast_exact"]) > 0.5 for row in rows] == [False, True] * 2
    assert "the forecast is right in 4 of 4 first rounds" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "records"),
        (["--records=100", "--eps=1"], "--clients"),
        (["--records=100", "--eps=1", "--clients=12", "--clusters=7"], "7 clusters of 12"),
        (["--records=100", "--eps=1", "--cluster_sizes=3,x"], "--cluster_sizes=3,x"),
        (["--records=100", "--eps=1", "--cluster_sizes=3,3", "--clients=7"], "--clients=7"),
        (["--records=100", "--eps=inf", "--clients=8"], "--eps=inf"),
        (["--records=20000", "--eps=1", "--clients=8"], "--delta=0.0001"),
        (["--records=10", "--eps=1", "--clients=8"], "a batch of 32"),
        (["--records=100", "--eps=1", "--clients=8", "--signal=0"], "--signal=0"),
        (["--records=100", "--eps=1", "--clients=8", "--signal=1", "--proxy=digits"], "--proxy"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_told_in_one_line(tmp_path, arguments, message):
    done = run_plan(tmp_path, *arguments)
    assert done.returncode == 1
    errors = done.stderr.strip().splitlines()
    assert errors[-1].startswith("error: ") and message in errors[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "plan").exists()
