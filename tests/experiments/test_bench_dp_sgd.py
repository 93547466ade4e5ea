"""`experiments.bench dp_sgd`, as a user calls it, on its smallest case. No time is asserted."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks import dp_sgd_speed
from experiments.benchmarks.contender import Job
from rdpcfl_tff.errors import UserError

SMALLEST = ("--models=cnn", "--batch_size=8", "--repeats=1", "--seconds=0.01")


def bench(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "experiments.bench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_table_csv_and_plot(tmp_path):
    done = bench(
        "dp_sgd",
        *SMALLEST,
        "--threadings=two_clients",
        "--contenders=ours,keras_sgd,opacus_ghost",
        f"--peer_python={tmp_path / 'python'}",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    assert "cnn, b=8, two clients at once, one thread each\n" in done.stdout
    table = pd.read_csv(tmp_path / "table.csv", index_col="contender")
    assert list(table.index) == [
        "ours",
        "SGD without privacy, Keras",
        "Opacus, ghost clipping",
    ]
    measured = pd.read_csv(tmp_path / "measurements.csv", index_col="contender").ms_per_step
    assert (measured > 0).all()
    ratio = measured["ours"] / measured["SGD without privacy, Keras"]
    assert table.times_sgd["ours"] == pytest.approx(ratio)
    assert f"| ours | {measured['ours']:.1f} |" in done.stdout
    # A contender that is not there is listed, and is no error.
    assert table.note["Opacus, ghost clipping"].startswith("not installed")
    assert pd.isna(table.ms_per_step["Opacus, ghost clipping"])
    assert (tmp_path / "speed.png").stat().st_size > 0


def test_half_of_the_batch_is_clipped():
    """The check of the contenders against ours would not notice a clip that clips nobody."""
    import tensorflow as tf

    from experiments.benchmarks.tensorflow_contenders import keras_model
    from rdpcfl_tff.models.functional import losses

    job = dp_sgd_speed._job("cnn", 32)
    model = keras_model(job)
    norms = []
    for image, label in zip(job.inputs, job.labels, strict=True):
        with tf.GradientTape() as tape:
            loss = losses(model(image[np.newaxis]), label[np.newaxis])
        norms.append(tf.linalg.global_norm(tape.gradient(loss, model.trainable_weights)))
    assert 8 <= np.sum(np.array(norms) > job.clip_norm) <= 24


def test_another_step_than_ours_is_not_timed():
    ours = np.array([3.0, 4.0])
    dp_sgd_speed._check_same(ours + 1e-4, ours)
    with pytest.raises(dp_sgd_speed.CannotRun, match="another job"):
        dp_sgd_speed._check_same(ours + 1e-2, ours)
    with pytest.raises(dp_sgd_speed.CannotRun, match="another job"):
        dp_sgd_speed._check_same(ours * np.nan, ours)


def test_the_job_survives_its_file(tmp_path):
    job = dp_sgd_speed._job("cnn", 4)
    job.save(tmp_path / "job.npz")
    loaded = Job.load(tmp_path / "job.npz")
    assert list(loaded.weights) == list(job.weights)
    assert (loaded.model, loaded.clip_norm) == (job.model, job.clip_norm)
    np.testing.assert_array_equal(loaded.inputs, job.inputs)
    np.testing.assert_array_equal(loaded.labels, job.labels)


def test_unknown_names_are_told(tmp_path):
    done = bench("dp_sgd", "--contenders=ours,theirs", f"--output_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --contenders: 'theirs' is unknown; use some of ours,")


def test_settings_are_checked(tmp_path):
    settings = dict(
        models=["cnn"],
        threadings=["two_clients"],
        contenders=[],
        batch_size=8,
        repeats=1,
        seconds=1.0,
        peer_python="python",
        output_dir=tmp_path,
    )
    for wrong in ({"repeats": 0}, {"batch_size": 0}, {"models": ["vgg"]}, {"threadings": ["x"]}):
        with pytest.raises(UserError, match=f"--{next(iter(wrong))}"):
            dp_sgd_speed.Settings(**(settings | wrong))
