"""A contender of the speed benchmark: a child process that runs DP-SGD steps when it is asked to.

A process of its own, because the peers need packages that cannot live beside TensorFlow 2.14. For
the same reason this module imports nothing but NumPy. The parent's side is `dp_sgd_speed.py`.
"""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Of every noised step. No gradient is ever large enough for these to matter to the time.
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 1e-3
# Public constants that turn pixels into the model's inputs.
PIXEL_MEAN = 0.5
PIXEL_STD = 0.5


class Job(NamedTuple):
    """What all contenders of a model work on: the same weights, the same batch.

    Attributes:
      model: cnn or resnet18.
      weights: initial weights by their Keras name, in Keras' order and shapes.
      pixels: uint8 [b, height, width, channels].
      labels: int32 [b].
      clip_norm: c.
    """

    model: str
    weights: dict[str, np.ndarray]
    pixels: np.ndarray
    labels: np.ndarray
    clip_norm: float

    @property
    def inputs(self) -> np.ndarray:
        """The images as a model sees them: float32."""
        return (self.pixels.astype(np.float32) / 255 - PIXEL_MEAN) / PIXEL_STD

    def save(self, path: pathlib.Path) -> None:
        """Writes everything to one .npz file."""
        rest = {name: np.asarray(value) for name, value in self._asdict().items()}
        del rest["weights"]
        np.savez(path, **self.weights, **rest)

    @classmethod
    def load(cls, path: pathlib.Path) -> "Job":
        """Reads what `save` has written."""
        content = dict(np.load(path))
        return cls(
            model=str(content.pop("model")),
            pixels=content.pop("pixels"),
            labels=content.pop("labels"),
            clip_norm=float(content.pop("clip_norm")),
            weights=content,
        )


def flat(weights: dict[str, np.ndarray]) -> np.ndarray:
    """All weights as one vector."""
    return np.concatenate([weight.ravel() for weight in weights.values()])


class Cost(NamedTuple):
    """What a number of steps took: elapsed time, and the time that all threads were at work."""

    seconds: float
    cpu_seconds: float


class Contender:
    """One way to train the job's model by DP-SGD with a fixed batch."""

    def run(self, steps: int) -> None:
        """Takes this many steps and waits until they are done."""
        raise NotImplementedError

    def parameters(self) -> np.ndarray:
        """The trained weights as one vector, in Keras' order and layout."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what was started."""

    def cpu_seconds(self) -> float:
        """The CPU time that was used so far."""
        return time.process_time()

    def cost(self, steps: int) -> Cost:
        """What `run` takes."""
        start, cpu_start = time.perf_counter(), self.cpu_seconds()
        self.run(steps)
        return Cost(time.perf_counter() - start, self.cpu_seconds() - cpu_start)


# From (job, noise multiplier, learning rate).
Factory = Callable[[Job, float, float], Contender]


def serve(factories: dict[str, Factory]) -> None:
    """Answers the parent: `python -m MODULE NAME JOB.npz`, one question per line of standard input.

    `update FILE` saves what one noiseless step changes; `run STEPS` answers with its `Cost`.
    """
    _, name, job_file = sys.argv
    # Libraries may print what they like: only answers go to the parent.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Some need gigabytes: if the memory runs out, nothing else on the machine shall pay for it.
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
    factory = factories[name]
    job = Job.load(pathlib.Path(job_file))
    with contextlib.ExitStack() as to_close:
        timed = None
        for line in sys.stdin:
            question, argument = line.split(maxsplit=1)
            if question == "update":
                np.save(argument.strip(), _noiseless_update(factory, job))
                print("saved", file=answers)
            else:
                if timed is None:
                    timed = factory(job, NOISE_MULTIPLIER, LEARNING_RATE)
                    to_close.enter_context(contextlib.closing(timed))
                print(*timed.cost(int(argument)), file=answers)


def _noiseless_update(factory: Factory, job: Job) -> np.ndarray:
    with contextlib.closing(factory(job, 0.0, 1.0)) as contender:
        contender.run(1)
        return contender.parameters() - flat(job.weights)
