"""No value of a flag, however strange, ends in a traceback."""

import re
import subprocess
import sys


def test_every_flag_takes_a_value_or_refuses_it():
    # A process of its own, because the flags of two commands cannot live in one.
    done = subprocess.run(
        [sys.executable, "-m", "tests.experiments.flag_values"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout
    flags, values = map(int, re.findall(r"\d+", done.stderr.splitlines()[-1]))
    assert flags > 25 and values > 500
