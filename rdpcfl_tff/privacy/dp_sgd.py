"""DP-SGD on one client: Poisson batch, clip, noise, step (the paper's Algorithm 1, local update).

Private: images and labels, and so how many there are. Public: all numbers of `LocalTask`.
The returned update is noised; nothing else of a client's data leaves this function.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from rdpcfl_tff.privacy.clipping import Batch, Engine, UnclippedEngine

# A batch is worked off in chunks, so that memory does not grow with N.
LARGEST_CHUNK = 128
# Chunk sizes are multiples of this: every new size costs oneDNN a new set of primitives.
CHUNK_MULTIPLE = 4


class LocalTask(NamedTuple):
    """The public numbers of one client's round, all of them scalar tensors but the seed.

    Attributes:
      records: N, as it was announced and accounted for (int32). The sampling rate follows from it,
        and not from the records that are there: a neighbouring data set has one more or less.
      batch_size: expected batch size b (int32); the sampling rate is b/N.
      steps: number of SGD steps (int32).
      learning_rate: eta (float32).
      clip_norm: c (float32).
      noise_multiplier: z = sigma/c (float32).
      seed: int32[2], of this client and round alone.
    """

    records: tf.Tensor
    batch_size: tf.Tensor
    steps: tf.Tensor
    learning_rate: tf.Tensor
    clip_norm: tf.Tensor
    noise_multiplier: tf.Tensor
    seed: tf.Tensor


def train(
    engine: Engine,
    parameters: tf.Tensor,
    images: tf.Tensor,
    labels: tf.Tensor,
    task: LocalTask,
    normalisation: Callable[[tf.Tensor], tf.Tensor],
    private: bool,
    pull: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
    """Train on one client's records and return the update, final minus initial parameters.

    Args:
      engine: clips and sums gradients.
      parameters: float32[p], the model to start from.
      images: uint8[N, ...].
      labels: int[N].
      task: the round's public numbers.
      normalisation: maps uint8 images to the model's float32 inputs.
      private: False trains without clipping and noise, on the same batches.
      pull: a gradient that depends on the parameters and on no record, such as that of a
        regulariser. It joins after the noise, as post-processing, and costs no privacy.
    """
    if not private:
        engine = UnclippedEngine(engine.model)
    model = engine.model
    expected_batch = tf.cast(task.batch_size, tf.float32)
    noise_std = task.clip_norm * task.noise_multiplier
    # What no output depends on influences no later step, so that all its noise can be drawn at the
    # end: the sum of the steps' noises, with the same distribution. A pull would shrink it.
    noise_at_end = private and pull is None and model.num_live_parameters < model.num_parameters

    def batch_sum(sum_so_far: tf.Tensor, theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        def one_chunk(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            indices, weights = _chunk(batch, start)
            inputs = normalisation(tf.gather(images, indices))
            chunk = Batch(inputs, tf.gather(labels, indices), weights)
            return start + LARGEST_CHUNK, total + engine.gradient_sum(theta, chunk, task.clip_norm)

        _, total = tf.while_loop(
            lambda start, _: start < tf.shape(batch)[0],
            one_chunk,
            (tf.constant(0), sum_so_far),
            parallel_iterations=1,
        )
        return total

    def one_step(step: tf.Tensor, theta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sampling_seed, noise_seed = _split(
            tf.random.experimental.stateless_fold_in(task.seed, step)
        )
        if noise_at_end:
            noise = model.spread(gaussian_noise(model.num_live_parameters, noise_std, noise_seed))
        elif private:
            noise = gaussian_noise(model.num_parameters, noise_std, noise_seed)
        else:
            noise = tf.zeros_like(theta)
        batch = poisson_batch(tf.shape(images)[0], task.records, task.batch_size, sampling_seed)
        # Dividing by the public b: the size of the batch that was drawn is private.
        total = batch_sum(noise, theta, batch)
        moved = theta - (task.learning_rate / expected_batch) * total
        if pull is not None:
            moved -= task.learning_rate * pull(theta)
        return step + 1, moved

    _, trained = tf.while_loop(
        lambda step, _: step < task.steps,
        one_step,
        (tf.constant(0), parameters),
        parallel_iterations=1,
    )
    if noise_at_end:
        _, noise_seed = _split(tf.random.experimental.stateless_fold_in(task.seed, task.steps))
        all_steps_std = noise_std * tf.sqrt(tf.cast(task.steps, tf.float32))
        noise = gaussian_noise(model.num_parameters, all_steps_std, noise_seed)
        live = model.spread(tf.ones(model.num_live_parameters))
        trained -= (task.learning_rate / expected_batch) * noise * (1 - live)
    return trained - parameters


def poisson_batch(
    present: tf.Tensor, records: tf.Tensor, batch_size: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Indices of a Poisson sample: each record that is present is in it with probability b/N."""
    coins = tf.random.stateless_uniform([present], seed, minval=None, maxval=None, dtype=tf.uint32)
    chosen = tf.where(included(coins, records, batch_size))
    return tf.cast(tf.squeeze(chosen, axis=1), tf.int32)


def included(coins: tf.Tensor, records: tf.Tensor, batch_size: tf.Tensor) -> tf.Tensor:
    """Whether a record whose coin shows this uint32 is in the batch.

    The coin is compared in integers with floor(b/N * 2^32), so that no record is ever drawn more
    often than at the accounted rate b/N; with b = N everybody is in.
    """
    threshold = tf.cast(batch_size, tf.int64) * 2**32 // tf.cast(records, tf.int64)
    return tf.cast(coins, tf.int64) < threshold


def gaussian_noise(size: int, standard_deviation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Independent normals with mean 0: float32[size], by Box and Muller's transform.

    Noise is a large part of a large model's step, and `tf.random.stateless_normal` takes 1.7 times
    as long. The radius is drawn from 31 bits, so that the tails reach 6.6 standard deviations.
    """
    pairs = (size + 1) // 2
    radius_seed, angle_seed = _split(seed)
    integers = tf.random.stateless_uniform(
        [pairs], radius_seed, minval=None, maxval=None, dtype=tf.int32
    )
    uniform = (tf.abs(tf.cast(integers, tf.float32)) + 0.5) * 2**-31
    radius = standard_deviation * tf.sqrt(-2 * tf.math.log(uniform))
    angle = tf.random.stateless_uniform([pairs], angle_seed, -math.pi, math.pi)
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)[:size]


def _split(seed: tf.Tensor) -> list[tf.Tensor]:
    """Two independent seeds from one."""
    return tf.unstack(tf.random.experimental.stateless_split(seed, num=2))


def _chunk(batch: tf.Tensor, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A part of the batch, filled up with record 0 at weight 0: (indices, weights)."""
    indices = batch[start : start + LARGEST_CHUNK]
    missing = -tf.shape(indices)[0] % CHUNK_MULTIPLE
    weights = tf.pad(tf.ones_like(indices, tf.float32), [[0, missing]])
    return tf.pad(indices, [[0, missing]]), weights
