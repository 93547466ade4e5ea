"""docs/results.md: its tables of sweeps are those of the runs that are kept beside it."""

import pathlib
import re

import pandas as pd
import pytest

from experiments import sweep_results

DOCS = pathlib.Path(__file__).parents[2] / "docs"
TABLES = sorted((DOCS / "results").glob("*.csv"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_is_made_of_its_runs(path):
    runs = pd.read_csv(path)
    assert sweep_results.as_text(runs) in (DOCS / "results.md").read_text()
    assert f"(results/{path.name})" in (DOCS / "results.md").read_text()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_run_is_there_once_and_has_its_hash(path):
    runs = pd.read_csv(path)
    assert not runs.duplicated(["dataset", "shift", "epsilon", "algorithm", "seed"]).any()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in runs["hash"])
    assert runs["hash"].is_unique


def test_there_are_tables():
    assert TABLES
