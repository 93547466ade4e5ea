import csv
import json
import math

import pytest

from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.training.records import RunRecords

CONFIG = RunConfig("odpcfl", "digits", epsilon=math.inf)


def records(folder, config=CONFIG):
    return RunRecords(folder, config, ["main", "--eps=inf"])


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_appended_under_one_header(tmp_path):
    writer = records(tmp_path / "run")
    writer.add_round({"round": 1, "stage": "one, with a comma"})
    writer.add_round({"round": 2, "stage": "two"})
    assert rows(tmp_path / "run" / "metrics.csv") == [
        {"round": "1", "stage": "one, with a comma"},
        {"round": "2", "stage": "two"},
    ]


def test_rows_after_the_checkpoint_are_forgotten(tmp_path):
    writer = records(tmp_path / "run")
    for number in (1, 2, 3):
        writer.add_assignment(number, (0, 1))
    writer.forget_after(2)
    writer.add_assignment(3, (1, 1))
    assert [row["client_0"] for row in rows(tmp_path / "run" / "assignments.csv")] == list("001")
    writer.forget_after(0)
    writer.add_assignment(1, (0, 1))
    assert len(rows(tmp_path / "run" / "assignments.csv")) == 1


def test_the_config_is_strict_json_even_without_a_budget(tmp_path):
    records(tmp_path / "run")

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    content = json.loads((tmp_path / "run" / "config.json").read_text(), parse_constant=refuse)
    assert content["config"]["epsilon"] == "inf"
    assert content["command"] == ["main", "--eps=inf"]


def test_the_same_run_is_opened_again_and_another_is_refused(tmp_path):
    records(tmp_path / "run")
    records(tmp_path / "run")
    other = RunConfig("odpcfl", "digits", epsilon=math.inf, batch_size=64)
    with pytest.raises(UserError, match="batch_size was 32, now 64"):
        records(tmp_path / "run", other)


def test_a_folder_that_cannot_be_made_is_the_users_to_put_right(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output_dir"):
        records(tmp_path / "file" / "run")
