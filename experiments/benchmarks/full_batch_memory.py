"""The peak memory of one full-batch step of DP-SGD: ResNet-18 on CIFAR-10's 6,666 images."""

import pathlib
import re
import time

import numpy as np
import tensorflow as tf

from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.models.resnet import resnet18
from rdpcfl_tff.privacy import clipping, dp_sgd

RECORDS = 6666
IMAGE_SHAPE = (32, 32, 3)


def run(records: int = RECORDS) -> None:
    """Prints the peak memory of this process before and after the step."""
    model = FunctionalModel(resnet18(IMAGE_SHAPE))
    engine = clipping.fast_engine(model)
    rng = np.random.default_rng(0)
    images = tf.constant(rng.integers(0, 256, (records, *IMAGE_SHAPE), dtype=np.uint8))
    labels = tf.constant(rng.integers(0, 10, records).astype(np.int32))
    task = dp_sgd.LocalTask(
        records=tf.constant(records),
        batch_size=tf.constant(records),
        steps=tf.constant(1),
        learning_rate=tf.constant(0.001),
        clip_norm=tf.constant(3.0),
        noise_multiplier=tf.constant(1.0),
        seed=tf.constant((1, 2)),
    )
    scale = RecordFormat(IMAGE_SHAPE, mean=0.5, std=0.5).scale
    before = peak_gigabytes()
    start = time.perf_counter()
    update = tf.function(dp_sgd.train)(
        engine, tf.constant(model.initial_parameters), images, labels, task, scale, private=True
    )
    assert np.isfinite(update.numpy()).all()
    print(
        f"full batch of {records} images, ResNet-18: {time.perf_counter() - start:.0f} s\n"
        f"peak memory before the step: {before:.2f} GB\n"
        f"peak memory after the step:  {peak_gigabytes():.2f} GB"
    )


def peak_gigabytes() -> float:
    """This process' highest resident memory; unlike `getrusage`, without its parent's."""
    status = pathlib.Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert match
    return int(match[1]) * 1024 / 1e9
