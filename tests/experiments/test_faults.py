"""What goes wrong around a run is told in one line, and the run goes on when it is mended."""

import resource
import shutil
import subprocess
import sys
import time

import pytest

FLAGS = (
    "--dataset=digits",
    "--preset=smoke",
    "--rounds=4",
    "--cluster_sizes=2,3",
    "--algorithm=odpcfl",
)


def start(folder, **how) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.main", *FLAGS),
            *(f"--cache_dir={folder}/cache", f"--output_dir={folder}/run"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **how,
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    process = start(folder)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return folder


def last_line(output):
    return output.strip().splitlines()[-1]


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_space(unbroken, tmp_path):
    shutil.copytree(unbroken / "cache", tmp_path / "cache")

    def no_space():
        # No file may grow beyond this: the system answers as it does when a disk is full.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    process = start(tmp_path, preexec_fn=no_space)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert last_line(output).startswith("error: no space left to write in")
    assert "Traceback" not in output
    assert not list((tmp_path / "run").glob("*.partial"))

    process = start(tmp_path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    for name in ("summary.json", "metrics.csv", "simulation_metrics.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (unbroken / "run" / name).read_bytes()


def test_a_results_folder_that_vanishes_is_told(unbroken, tmp_path):
    shutil.copytree(unbroken / "cache", tmp_path / "cache")
    process = start(tmp_path)
    while not (tmp_path / "run" / "checkpoint_000001.npz").exists():
        assert process.poll() is None
        time.sleep(0.01)
    shutil.rmtree(tmp_path / "run")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert last_line(output).startswith("error: cannot write in")
    assert "Traceback" not in output


def test_a_request_to_end_ends_a_run_as_ctrl_c_does(unbroken, tmp_path):
    shutil.copytree(unbroken / "cache", tmp_path / "cache")
    process = start(tmp_path)
    while not list((tmp_path / "run").glob("checkpoint_*.npz")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert last_line(output) == "interrupted"
    assert "Traceback" not in output
