"""What tuning costs: the epsilon of showing the best of many runs, or all of them.

Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy" (ICLR 2022), as
dp_accounting has it. The paper tunes on the clients' records and does not account for it.
Nothing private comes in here: a privacy statement is public.
"""

from collections.abc import Mapping
from typing import Any

import dp_accounting
from dp_accounting import dp_event

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy.accounting import ORDERS, Adjacency


def epsilon_of_all(statement: Mapping[str, Any], runs: int) -> float:
    """Epsilon at the statement's delta if all runs are seen, as the server sees them."""
    return _epsilon(statement, dp_event.SelfComposedDpEvent(_one_run(statement), runs))


def epsilon_of_best(statement: Mapping[str, Any], mean_runs: float) -> float:
    """Epsilon if only the best run is seen, and chance decides after each run if it was the last.

    With the probability 1 / mean_runs: a geometric number of runs. The bound holds if each run
    draws its hyperparameters anew from the grid, and the best is chosen by a score that costs no
    privacy of the training records, such as an accuracy on other records. For a number of runs that
    is fixed, as in a grid search, it says nothing: there, only `epsilon_of_all` is safe.
    """
    geometric = 1
    return _epsilon(
        statement, dp_event.RepeatAndSelectDpEvent(_one_run(statement), mean_runs, geometric)
    )


def _one_run(statement: Mapping[str, Any]) -> dp_accounting.DpEvent:
    """All that one client's records go through in one run."""
    if statement["adjacency"] != Adjacency.ADD_OR_REMOVE_ONE.value:
        raise UserError("the cost of tuning is known for --adjacency=add_or_remove_one only")
    return dp_accounting.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(_once(mechanism), mechanism["times"])
            for mechanism in statement["mechanisms"]
        ]
    )


def _once(mechanism: Mapping[str, Any]) -> dp_accounting.DpEvent:
    if mechanism["mechanism"] == "exponential":
        # Renyi-DP of the exponential mechanism is at most alpha epsilon^2 / 8, that of a Gaussian
        # is alpha / (2 z^2).
        return dp_accounting.GaussianDpEvent(2 / mechanism["epsilon"])
    gaussian = dp_accounting.GaussianDpEvent(mechanism["noise_multiplier"])
    if mechanism["sampling_rate"] == 1:
        return gaussian
    return dp_accounting.PoissonSampledDpEvent(mechanism["sampling_rate"], gaussian)


def _epsilon(statement: Mapping[str, Any], event: dp_accounting.DpEvent) -> float:
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS)
    return float(accountant.compose(event).get_epsilon(statement["delta"]))
