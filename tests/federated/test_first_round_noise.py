"""The noise of clients in round 1 is the plan's, through the real computation in the worker."""

import numpy as np
import pytest
from scipy import stats

from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping, randomness
from rdpcfl_tff.privacy.accounting import Schedule
from rdpcfl_tff.privacy.plan import PrivacyPlan

CLIP, LEARNING_RATE = 2.0, 0.1


@pytest.fixture(scope="module")
def updates(worker, digits_store):
    """Updates of the first two rounds, by the noise multiplier of round 1; z is 1 after it."""

    def both_rounds(first: float) -> list[np.ndarray]:
        schedules = tuple(
            Schedule(records=size, rounds=2, batch_size=16, first_batch_size=size)
            for size in digits_store.client_sizes["train"]
        )
        plan = PrivacyPlan((1.0,) * 3, (1e-3,) * 3, schedules, (1.0,) * 3, (first,) * 3)
        federation = Federation(
            silos=digits_store.client_directories,
            records=RecordFormat.of(digits_store),
            engine=clipping.fast_engine(FunctionalModel(cnn(seed=1))),
            plan=plan,
            learning_rate=LEARNING_RATE,
            clip_norm=CLIP,
            key=randomness.run_key(0),
        )
        model = federation.initial_parameters
        return [federation.updates(model, round_number) for round_number in (1, 2)]

    return {first: both_rounds(first) for first in (0.0, 7.5)}


def test_round_1_has_noise_of_its_own_multiplier(updates, digits_store):
    # Both had the same batches, so what is left of the difference is the noise.
    noise = updates[7.5][0] - updates[0.0][0]
    for client, records in enumerate(digits_store.client_sizes["train"]):
        standardised = noise[client] / (LEARNING_RATE / records * CLIP * 7.5)
        assert np.std(standardised) == pytest.approx(1, abs=4 / np.sqrt(2 * len(standardised)))
        assert stats.kstest(standardised, "norm").pvalue > 1e-3


def test_later_rounds_do_not_have_it(updates):
    np.testing.assert_array_equal(updates[7.5][1], updates[0.0][1])
