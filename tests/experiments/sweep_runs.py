"""Finished runs for tests, written without training: their numbers mean nothing."""

import json
import pathlib

from experiments.sweep_folder import Run, run_folder
from rdpcfl_tff.config import RunConfig


def example_run(algorithm: str = "rdpcfl", **fields) -> Run:
    config = RunConfig(algorithm=algorithm, dataset="digits", **{"epsilon": 3.0, **fields})
    name = f"{algorithm}-digits-eps{config.epsilon:g}-seed{config.seed}"
    return Run(name, (f"--algorithm={algorithm}",), config)


def finish(folder: pathlib.Path, run: Run, accuracy: float | None) -> None:
    """Without an accuracy, it was stopped after round 1."""
    directory = run_folder(folder, run.name)
    directory.mkdir(parents=True)
    private = run.config.epsilon < float("inf")
    summary = {
        "algorithm": run.config.algorithm,
        "dataset": run.config.dataset,
        "rounds": run.config.rounds,
        "private": private,
        "epsilon_spent": run.config.epsilon if private else None,
        "models": 4,
        "models_in_use": 4,
        "simulation_test_accuracy": (
            {"mean": accuracy, "worst": 0.1, "minority": 0.2} if accuracy is not None else None
        ),
        "simulation_partition": {"exact": True, "misplaced_clients": 0, "minority_found": True},
    }
    written = {"command": ["main"], "config": run.config.as_json()}
    (directory / "config.json").write_text(json.dumps(written))
    (directory / "summary.json").write_text(json.dumps(summary))
