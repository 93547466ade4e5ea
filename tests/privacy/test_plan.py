import math

import numpy as np
import pytest

from rdpcfl_tff.privacy import accounting
from rdpcfl_tff.privacy.accounting import Schedule
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.privacy.statement import NoiseSource

SMALL = Schedule(records=500, rounds=4, batch_size=20, first_batch_size=500)
LARGE = Schedule(records=900, rounds=4, batch_size=20, first_batch_size=900)


@pytest.fixture(scope="module")
def plan():
    return PrivacyPlan.calibrate([SMALL, LARGE, SMALL], epsilon=2.0, delta=1e-4)


def test_every_client_has_the_noise_for_its_own_schedule(plan):
    small, large, again = plan.noise_multipliers
    assert small == again
    assert small == pytest.approx(accounting.noise_multiplier(SMALL, 2.0, 1e-4))
    assert large == pytest.approx(accounting.noise_multiplier(LARGE, 2.0, 1e-4))


def test_noise_is_a_float32_that_is_not_below_the_calibrated_one(plan):
    for schedule, z in zip(plan.schedules, plan.noise_multipliers, strict=True):
        assert float(np.float32(z)) == z
        assert z >= accounting.noise_multiplier(schedule, 2.0, 1e-4)
        assert accounting.epsilon_spent(schedule, z, 1e-4) <= 2.0


def test_epsilon_spent_is_the_largest_of_all_clients(plan):
    each = [
        accounting.epsilon_spent(schedule, z, 1e-4, rounds_done=1, selections_done=0)
        for schedule, z in zip(plan.schedules, plan.noise_multipliers, strict=True)
    ]
    assert each[0] != each[1]
    assert plan.epsilon_spent(1, 0) == max(each)


def test_clients_that_are_alike_share_a_statement(plan):
    first, second = plan.statements(clip_norm=1.0, noise_source=NoiseSource.SEED)
    assert (first["clients"], second["clients"]) == ([0, 2], [1])
    assert second["public"]["records"] == 900


def test_a_plan_without_privacy_has_no_noise():
    plan = PrivacyPlan.calibrate([SMALL], epsilon=math.inf, delta=1e-4)
    assert not plan.private
    assert plan.noise_multipliers == (0.0,)
    assert plan.epsilon_spent(4, 0) == math.inf
