"""Runs to account for."""

from rdpcfl_tff.privacy.accounting import Adjacency, Schedule

DELTA = 1e-4
REPLACE = Adjacency.REPLACE_ONE


def paper(first_batch_size=8000, selections=20, epsilon=5.0, **changes):
    """The paper's MNIST setting; R-DPCFL unless told otherwise."""
    return Schedule(
        records=8000,
        rounds=200,
        batch_size=32,
        first_batch_size=first_batch_size,
        selections=selections,
        epsilon_select=0.03 * epsilon,
        **changes,
    )


def full_batch(rounds=1, records=100, **changes):
    return Schedule(
        records=records, rounds=rounds, batch_size=records, first_batch_size=records, **changes
    )
