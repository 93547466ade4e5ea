"""The presets: what the paper fixes, and what shorter runs must change with their learning rate."""

import pytest

from experiments import presets
from rdpcfl_tff.config import ALGORITHMS, RunConfig


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_batches_are_the_papers(algorithm):
    for dataset in ("mnist", "fashion_mnist", "cifar10"):
        chosen = presets.settings("paper", algorithm, dataset, "rotation")
        small = algorithm == "rdpcfl" or dataset != "cifar10"
        assert chosen.get("batch_size", RunConfig().batch_size) == (32 if small else 64)


@pytest.mark.parametrize("preset", ["quick", "mini"])
@pytest.mark.parametrize("dataset", ["mnist", "fashion_mnist", "cifar10"])
def test_larger_steps_pull_no_harder(preset, dataset):
    paper = presets.settings("paper", "mr_mtl", dataset, "rotation")
    shorter = presets.settings(preset, "mr_mtl", dataset, "rotation")
    assert shorter["learning_rate"] > paper["learning_rate"]
    assert "mr_mtl_lambda" not in paper and RunConfig().mr_mtl_lambda == 1
    assert shorter["learning_rate"] * shorter["mr_mtl_lambda"] == pytest.approx(
        paper["learning_rate"]
    )


def test_only_mr_mtl_has_a_pull_of_its_own():
    for algorithm in set(ALGORITHMS) - {"mr_mtl"}:
        assert "mr_mtl_lambda" not in presets.settings("quick", algorithm, "mnist", "rotation")
