"""The statement says what was accounted for, in JSON and in words, and admits no privacy."""

import json
import math

import pytest

from rdpcfl_tff.privacy import accounting, second_opinion
from rdpcfl_tff.privacy.accounting import Adjacency, Schedule
from rdpcfl_tff.privacy.statement import NoiseSource, as_text, privacy_statement


def _statement(
    epsilon=5.0, noise_source=NoiseSource.SEED, first_round_noise_multiplier=None, **changes
):
    numbers = {
        "records": 1000,
        "rounds": 10,
        "batch_size": 50,
        "first_batch_size": 1000,
        "selections": 2,
        "epsilon_select": 0.03 * epsilon,
    }
    schedule = Schedule(**(numbers | changes))
    z = accounting.noise_multiplier(schedule, epsilon, 1e-4, first_round_noise_multiplier)
    return privacy_statement(
        schedule,
        delta=1e-4,
        noise_multiplier=z,
        first_round_noise_multiplier=first_round_noise_multiplier,
        clip_norm=1.5,
        clients=21,
        noise_source=noise_source,
    )


@pytest.mark.parametrize("epsilon", [3.0, math.inf])
def test_json_round_trip(epsilon):
    statement = _statement(epsilon)
    read_back = json.loads(json.dumps(statement, allow_nan=False))
    assert read_back == statement
    assert as_text(read_back) == as_text(statement)


def test_numbers_are_those_of_the_accountant():
    statement = _statement()
    z = statement["public"]["noise_multiplier"]
    schedule = Schedule(1000, 10, 50, 1000, selections=2, epsilon_select=0.15)
    assert statement["epsilon"] == {
        "rdp": accounting.epsilon_spent(schedule, z, 1e-4),
        "pld": second_opinion.epsilon_spent_pld(schedule, z, 1e-4),
    }
    assert 4.99 < statement["epsilon"]["rdp"] <= 5.0
    assert statement["orders"]["optimal"] in accounting.ORDERS
    gaussian, sampled, exponential = statement["mechanisms"]
    assert (gaussian["mechanism"], gaussian["times"]) == ("Gaussian", 1)
    assert (sampled["times"], sampled["sampling_rate"]) == (9 * 20, 0.05)
    assert sampled["noise_multiplier"] == z
    assert (exponential["times"], exponential["epsilon"]) == (2, 0.15)
    assert exponential["sensitivity"] == 1 / 999


def test_text_has_every_part():
    text = as_text(_statement())
    assert text.startswith("(5.000, 0.0001)-differentially private, for one training record")
    for part in (
        "add or remove one record",
        "Poisson",
        "180 x Poisson-sampled Gaussian, sampling rate 0.05",
        "2 x exponential, epsilon 0.15 each",
        "by RDP",
        "by PLD",
        "RDP orders",
        "N=1000, b=50 (round 1: 1000), K=1, E=10, c=1.5",
        "n=21",
        "not protected  somebody who has several records",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


def test_printed_epsilon_is_rounded_up():
    statement = _statement()
    statement["epsilon"] = {"rdp": 3.0001, "pld": 2.5000001}
    text = as_text(statement)
    assert text.startswith("(3.001, ")
    assert "2.501 by PLD" in text


def test_first_round_noise_is_stated():
    gaussian, sampled, _ = _statement(first_round_noise_multiplier=7.5)["mechanisms"]
    assert gaussian["noise_multiplier"] == 7.5
    assert sampled["noise_multiplier"] < 7.5
    assert "1 x Gaussian, sampling rate 1, noise multiplier 7.5" in as_text(
        _statement(first_round_noise_multiplier=7.5)
    )


def test_noise_source_is_stated():
    assert "know the seed" in " ".join(as_text(_statement()).split())
    from_os = as_text(_statement(noise_source=NoiseSource.OPERATING_SYSTEM))
    assert "operating system" in from_os
    assert "know the seed" not in from_os


def test_replace_one_is_stated_and_has_no_pld():
    statement = _statement(adjacency=Adjacency.REPLACE_ONE)
    assert statement["epsilon"]["pld"] is None
    assert "replace one record" in as_text(statement)
    assert "none by PLD" in as_text(statement)


def test_infinite_epsilon_is_called_not_private():
    statement = _statement(math.inf)
    assert statement["private"] is False
    assert statement["epsilon"] == {"rdp": None, "pld": None}
    assert statement["protected"] == []
    text = as_text(statement)
    assert text.splitlines()[0].startswith("NOT private")
    assert "differentially private" not in text


def test_one_selection_without_noise_is_enough_to_lose_privacy():
    schedule = Schedule(1000, 10, 50, 1000, selections=1, epsilon_select=math.inf)
    statement = privacy_statement(
        schedule,
        delta=1e-4,
        noise_multiplier=5.0,
        clip_norm=1.0,
        clients=3,
        noise_source=NoiseSource.SEED,
    )
    assert as_text(statement).startswith("NOT private")
