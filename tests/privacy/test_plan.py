import dataclasses
import math

import numpy as np
import pytest

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import accounting
from rdpcfl_tff.privacy.accounting import Schedule
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.privacy.statement import NoiseSource

SMALL = Schedule(records=500, rounds=4, batch_size=20, first_batch_size=500)
LARGE = Schedule(records=900, rounds=4, batch_size=20, first_batch_size=900)
ROUND_1 = accounting.Done(first_round=True)


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
        accounting.epsilon_spent(schedule, z, 1e-4, done=ROUND_1)
        for schedule, z in zip(plan.schedules, plan.noise_multipliers, strict=True)
    ]
    assert each[0] != each[1]
    assert plan.epsilon_spent([ROUND_1] * 3) == max(each)
    assert plan.epsilon_spent([accounting.Done()] * 3) == 0
    small, large, _ = each
    assert plan.epsilon_spent([ROUND_1, accounting.Done(), accounting.Done()]) == small != large


def test_clients_that_are_alike_share_a_statement(plan):
    first, second = plan.statements(clip_norm=1.0, noise_source=NoiseSource.SEED)
    assert (first["clients"], second["clients"]) == ([0, 2], [1])
    assert second["public"]["records"] == 900


def test_a_plan_without_privacy_has_no_noise():
    plan = PrivacyPlan.calibrate([SMALL], epsilon=math.inf, delta=1e-4)
    assert not plan.private
    assert plan.noise_multipliers == (0.0,)
    assert plan.epsilon_spent([ROUND_1]) == math.inf


PAPER = Schedule(8000, 200, 32, 8000, selections=20, epsilon_select=0.09)


def test_round_1_has_its_own_noise_within_the_same_budget():
    shared = PrivacyPlan.calibrate([PAPER], 3.0, 1e-4)
    own = PrivacyPlan.calibrate([PAPER], 3.0, 1e-4, first_round_noise_multiplier=6.0)
    assert shared.noise_multipliers[0] == pytest.approx(1.911, abs=1e-3)
    assert shared.first_round_noise_multipliers == shared.noise_multipliers
    assert own.noise_multipliers[0] == pytest.approx(1.441, abs=1e-3)
    assert (own.noise_multiplier(0, 1), own.noise_multiplier(0, 2)) == (
        6.0,
        own.noise_multipliers[0],
    )
    for plan in (shared, own):
        assert 2.99 < plan.epsilon_spent([accounting.Done.all_of(PAPER)]) <= 3.0


@pytest.mark.parametrize("first", [2.7, 6.0, 1000.1])
def test_the_pair_never_costs_more_than_the_budget(first):
    plan = PrivacyPlan.calibrate([SMALL, LARGE], 2.0, 1e-4, first_round_noise_multiplier=first)
    for schedule, z, z1 in zip(
        plan.schedules, plan.noise_multipliers, plan.first_round_noise_multipliers, strict=True
    ):
        assert float(np.float32(z1)) == z1 >= first
        assert accounting.epsilon_spent(schedule, z, 1e-4, z1) <= 2.0


def test_what_round_1_costs_is_stated_with_its_own_noise():
    plan = PrivacyPlan.calibrate([SMALL], 2.0, 1e-4, first_round_noise_multiplier=6.0)
    (statement,) = plan.statements(clip_norm=1.0, noise_source=NoiseSource.SEED)
    assert [part["noise_multiplier"] for part in statement["mechanisms"]] == [
        6.0,
        plan.noise_multipliers[0],
    ]
    assert statement["public"]["first_round_noise_multiplier"] == 6.0
    spent = accounting.epsilon_spent(SMALL, plan.noise_multipliers[0], 1e-4, 6.0, done=ROUND_1)
    assert plan.epsilon_spent([ROUND_1]) == spent
    shared = PrivacyPlan.calibrate([SMALL], 2.0, 1e-4)
    assert spent < shared.epsilon_spent([ROUND_1])


def test_shares_of_the_budget():
    shared = accounting.budget_shares(PAPER, 1.911, 1e-4)
    assert list(shared) == ["round 1", "later rounds", "selections"]
    assert sum(shared.values()) == pytest.approx(1)
    assert shared["round 1"] == pytest.approx(0.48, abs=0.01)
    assert shared["selections"] == pytest.approx(0.07, abs=0.01)
    # By hand: at any order the RDP of a Gaussian is order / (2 z^2), of a selection order e^2 / 8.
    ratio = (1 / (2 * 1.911**2)) / (20 * 0.09**2 / 8)
    assert shared["round 1"] / shared["selections"] == pytest.approx(ratio)
    own = accounting.budget_shares(PAPER, 1.441, 1e-4, 6.0)
    assert own["round 1"] < 0.1


def test_every_client_may_have_a_budget_of_its_own():
    plan = PrivacyPlan.calibrate([SMALL, SMALL, SMALL], (2.0, 4.0, 2.0), (1e-4, 1e-4, 1e-3))
    for z, epsilon, delta in zip(
        plan.noise_multipliers, (2, 4, 2), (1e-4, 1e-4, 1e-3), strict=True
    ):
        assert z == pytest.approx(accounting.noise_multiplier(SMALL, epsilon, delta))
    statements = plan.statements(clip_norm=1.0, noise_source=NoiseSource.SEED)
    assert [one["delta"] for one in statements] == [1e-4, 1e-4, 1e-3]
    assert [round(one["epsilon"]["rdp"], 2) for one in statements] == [2.0, 4.0, 2.0]
    done = [accounting.Done.all_of(SMALL)] * 3
    assert 3.99 < plan.epsilon_spent(done) <= 4.0


def test_all_clients_are_private_or_none():
    with pytest.raises(UserError, match="give --eps"):
        PrivacyPlan.calibrate([SMALL, SMALL], (2.0, math.inf), 1e-4)


def test_a_budget_that_cannot_be_kept_is_told_with_the_clients_name():
    with pytest.raises(UserError, match=r"^client south: --delta=0.0015"):
        PrivacyPlan.calibrate([SMALL, LARGE], 2.0, 0.0015, names=("north", "south"))


def test_the_noise_of_updates_is_that_of_their_steps():
    # 10 steps of b = 50 in place of one step of 500: the noise is sqrt(10) * 10 times as large.
    small_batches = dataclasses.replace(SMALL, first_batch_size=50)
    plan = PrivacyPlan((2.0,) * 3, (1e-4,) * 3, (SMALL, LARGE, small_batches), (3.0, 1.5, 3.0))
    full, large, small = plan.noise_of_updates(round_number=1)
    assert small / full == pytest.approx(10 * math.sqrt(10))
    assert full / large == pytest.approx(2 * 900 / 500)
    weights = plan.average_weights(round_number=1)
    np.testing.assert_allclose(weights, [(5 / 9 / 2) ** 2, 1, (5 / 9 / 2) ** 2 / 1000])


def test_averages_without_noise_are_plain():
    plan = PrivacyPlan.calibrate([SMALL, LARGE], math.inf, 1e-4)
    np.testing.assert_array_equal(plan.average_weights(round_number=2), [1, 1])
