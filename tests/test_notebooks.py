"""Both notebooks, cell after cell, in a fresh process: no Jupyter is needed for that."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def code_of(notebook: pathlib.Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def executed(name: str, folder: pathlib.Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code_of(ROOT / "notebooks" / name)],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
            "MPLBACKEND": "Agg",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_first_tour_finds_the_three_clusters(tmp_path):
    printed = executed("first_tour.ipynb", tmp_path)
    assert "'exact': True" in printed
    assert "differentially private" in printed and "predicted [" in printed


def test_own_data_with_own_model_and_own_budgets(tmp_path):
    executed("own_data.ipynb", tmp_path)
    summary = json.loads((tmp_path / "results" / "own_data" / "summary.json").read_text())
    sites = [summary["assignment"][f"site_{site}.npz"] for site in range(6)]
    assert len(set(sites[:4])) == len(set(sites[4:])) == 1 and sites[0] != sites[5]
    assert (tmp_path / "predictions.csv").exists()


@pytest.mark.parametrize("name", ["first_tour.ipynb", "own_data.ipynb"])
def test_no_output_is_kept(name):
    cells = json.loads((ROOT / "notebooks" / name).read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
