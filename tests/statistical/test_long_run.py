"""Five hundred rounds: neither memory nor open files grow, and no process is left."""

import subprocess
import sys

import numpy as np
import psutil
import pytest

ROUNDS = 500


@pytest.mark.statistical
def test_a_long_run_does_not_grow(tmp_path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "experiments.main", "--dataset=digits", "--preset=smoke"),
            *(f"--rounds={ROUNDS}", "--cluster_sizes=2,3", "--eps=8", "--delta=1e-3"),
            *(f"--cache_dir={tmp_path}", f"--output_dir={run}", "--eval_every=10"),
        ],
        stdout=subprocess.DEVNULL,
    )
    parent = psutil.Process(process.pid)
    samples, children = [], set()
    while process.poll() is None:
        metrics = run / "metrics.csv"
        done = len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0
        try:
            family = [parent, *parent.children(recursive=True)]
            children.update(family)
            memory = sum(one.memory_info().rss for one in family)
            files = sum(one.num_fds() for one in family)
        except psutil.NoSuchProcess:
            continue
        samples.append((done, memory, files))
        psutil.wait_procs([parent], timeout=0.5)
    assert process.returncode == 0
    rounds, memory, files = np.array(samples).T
    early = (rounds >= 50) & (rounds < 100)
    late = (rounds >= ROUNDS - 50) & (rounds < ROUNDS)
    assert early.sum() > 3 and late.sum() > 3
    assert np.median(memory[late]) <= 1.05 * np.median(memory[early])
    assert np.median(files[late]) == np.median(files[early])
    assert not [one for one in children if one.is_running() and one.pid != process.pid]
