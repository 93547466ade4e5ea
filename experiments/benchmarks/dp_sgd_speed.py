"""How fast a step of DP-SGD is: ours, SGD without privacy, TF Privacy and the peers, in one run.

Every contender is a process (`contender.py`), or one per client. They all take turns in every
repetition, so that a busy machine slows down all of them alike. Nobody is timed who does another
job: before that, one noiseless step of each must change the weights as ours does.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import tqdm

from experiments.benchmarks import speed_report
from experiments.benchmarks.contender import Cost, Job
from rdpcfl_tff.errors import UserError

# How much the update of one noiseless step may differ from ours, relative to its norm.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contender, as the table lists it.

    Attributes:
      name: what its module and --contenders call it.
      label: what the table calls it.
      module: where it lives; peers' modules run in the peers' interpreter.
      same_step: its noiseless step must change the weights as ours does.
      runs_all_clients: one process runs all clients at once, with one thread each.
    """

    name: str
    label: str
    module: str = "tensorflow_contenders"
    same_step: bool = True
    runs_all_clients: bool = False


ENTRIES = (
    Entry("ours", "ours"),
    Entry("ours_poisson", "ours, Poisson batches", same_step=False),
    Entry("ours_in_tff", "ours, inside TFF's client computation", runs_all_clients=True),
    Entry("sgd", "SGD without privacy, our model code", same_step=False),
    Entry(
        "sgd_in_tff",
        "SGD without privacy, inside TFF's client computation",
        same_step=False,
        runs_all_clients=True,
    ),
    Entry("keras_sgd", "SGD without privacy, Keras", same_step=False),
    Entry("vectorized_map", "tf.vectorized_map"),
    Entry("tfp_dp_model_our_layers", "TF Privacy DPModel with our layer rules"),
    Entry("tfp_dp_model", "TF Privacy DPModel"),
    Entry("tfp_vectorized", "TF Privacy VectorizedDPKerasSGDOptimizer"),
    Entry("tfp_microbatches", "TF Privacy DPKerasSGDOptimizer"),
    Entry("torch_func", "torch.func vmap(grad)", "torch_contenders"),
    Entry("opacus_hooks", "Opacus, hooks", "torch_contenders"),
    Entry("opacus_functorch", "Opacus, functorch", "torch_contenders"),
    Entry("opacus_ew", "Opacus, expanded weights", "torch_contenders"),
    Entry("opacus_ghost", "Opacus, ghost clipping", "torch_contenders"),
    Entry("jax_vmap", "JAX vmap(grad)", "jax_contenders"),
)
PEER_MODULES = ("torch_contenders", "jax_contenders")
# The table's ratios are to these two, so they always run.
ALWAYS = ("ours", "keras_sgd")


@dataclasses.dataclass(frozen=True)
class Threading:
    """How many clients train at the same time, and with how many threads each."""

    label: str
    clients: int
    threads: int

    def environment(self) -> dict[str, str]:
        """The same limit for every framework."""
        threads = str(self.threads)
        xla_flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if self.threads == 1 else {}
        return {
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "NPROC": threads,  # JAX
            "BENCH_CLIENTS": str(self.clients),
            **xla_flags,
        }


THREADINGS = {
    "two_clients": Threading("two clients at once, one thread each", clients=2, threads=1),
    "two_threads": Threading("one client, two threads", clients=1, threads=2),
    "one_thread": Threading("one client, one thread", clients=1, threads=1),
}

IMAGE_SHAPES = {"cnn": (28, 28, 1), "resnet18": (32, 32, 3)}
# About the median gradient norm in the batch that `_job` makes, so that half of it is clipped.
CLIP_NORMS = {"cnn": 9.15, "resnet18": 66.0}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
      models: names of `IMAGE_SHAPES`.
      threadings: names of `THREADINGS`.
      contenders: names of `ENTRIES`; none means all.
      batch_size: b.
      repeats: measurements of each contender.
      seconds: about how long one measurement takes.
      peer_python: the interpreter that has the peers' packages.
      output_dir: where the tables, the plot and the contenders' logs go.
    """

    models: Sequence[str]
    threadings: Sequence[str]
    contenders: Sequence[str]
    batch_size: int
    repeats: int
    seconds: float
    peer_python: str
    output_dir: pathlib.Path

    def __post_init__(self) -> None:
        _check_names("--models", self.models, IMAGE_SHAPES)
        _check_names("--threadings", self.threadings, THREADINGS)
        _check_names("--contenders", self.contenders, [entry.name for entry in ENTRIES])
        for flag, number in (("--batch_size", self.batch_size), ("--repeats", self.repeats)):
            if number < 1:
                raise UserError(f"{flag}={number}: must be at least 1")

    @property
    def entries(self) -> list[Entry]:
        """The contenders that were asked for."""
        chosen = {*self.contenders, *ALWAYS} if self.contenders else None
        return [entry for entry in ENTRIES if chosen is None or entry.name in chosen]


def _check_names(flag: str, names: Sequence[str], known: Sequence[str] | dict) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{flag}: '{name}' is unknown; use some of {', '.join(known)}")


def run(settings: Settings) -> None:
    """Measures, prints a table for each model and threading, writes CSV files and a plot."""
    logs = settings.output_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    print(speed_report.machine())
    labels = [entry.label for entry in settings.entries]
    measurements, tables = [], []
    for model, name in itertools.product(settings.models, settings.threadings):
        threading = THREADINGS[name]
        with tempfile.TemporaryDirectory(prefix="rdpcfl_tff-") as folder:
            job_file = pathlib.Path(folder) / "job.npz"
            _job(model, settings.batch_size).save(job_file)
            measured, notes = _measure(job_file, threading, settings, f"{logs}/{model}-{name}")
        table = speed_report.summary(measured, labels, notes)
        print(f"\n{model}, b={settings.batch_size}, {threading.label}\n")
        print(speed_report.markdown(table), flush=True)
        part = {"model": model, "threading": threading.label, "batch_size": settings.batch_size}
        measurements.append(measured.assign(**part))
        tables.append(table.assign(**part))
        # After every part, so that an interrupted run keeps what it has.
        pd.concat(measurements).to_csv(settings.output_dir / "measurements.csv", index=False)
        pd.concat(tables).to_csv(settings.output_dir / "table.csv", index=False)
        speed_report.draw(pd.concat(tables), settings.output_dir / "speed.png")
    print(f"\nresults: {settings.output_dir}")


def _job(model: str, batch_size: int) -> Job:
    # TensorFlow takes seconds to import: wrong settings are told before it.
    from rdpcfl_tff.models.catalogue import MODELS

    shape = IMAGE_SHAPES[model]
    keras_model = MODELS[model](shape)
    # The first seed at which plain Keras, too, gives the same gradient (to 1e-5) for the batch and
    # for its examples one by one. At others a ReLU's input is so close to 0 that its sign depends
    # on the order of a sum, and right contenders differ by more than the tolerance.
    rng = np.random.default_rng(3)
    # Images of different brightness have gradients of different norms.
    brightness = np.linspace(0.1, 1.0, batch_size).reshape(-1, 1, 1, 1)
    return Job(
        model=model,
        weights={weight.name: weight.numpy() for weight in keras_model.trainable_weights},
        pixels=(rng.integers(0, 256, (batch_size, *shape)) * brightness).astype(np.uint8),
        labels=rng.integers(0, 10, batch_size).astype(np.int32),
        clip_norm=CLIP_NORMS[model],
    )


class CannotRun(Exception):  # noqa: N818 (it is an answer, not a mistake)
    """Why a contender is not in the race."""


class Running:
    """The processes of one contender: one for each client, or one for all."""

    def __init__(self, entry: Entry, threading: Threading, command: list[str], log: pathlib.Path):
        self.entry = entry
        self._clients = threading.clients
        self._log = log
        self._steps = 0
        with log.open("w") as log_file:
            self._processes = [
                subprocess.Popen(
                    command,
                    env=os.environ | threading.environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    text=True,
                )
                for _ in range(1 if entry.runs_all_clients else threading.clients)
            ]

    def update(self, path: pathlib.Path) -> np.ndarray:
        """What one noiseless step changes."""
        self._ask(f"update {path}")
        self._answers()
        return np.load(path)

    def calibrate(self, seconds: float) -> None:
        """Compiles, and finds the number of steps that takes about this long."""
        self._cost(1)
        self._steps = 1
        while (measured := self._cost(self._steps).seconds) < seconds / 5:
            self._steps *= 4
        self._steps = max(1, round(self._steps * seconds / measured))

    def ms_per_step(self) -> Cost:
        """Milliseconds by the steps of all clients, which run at the same time."""
        cost = self._cost(self._steps)
        return Cost(*(1e3 * seconds / (self._steps * self._clients) for seconds in cost))

    def close(self) -> None:
        """Ends the processes: they stop at the end of their input."""
        for process in self._processes:
            assert process.stdin
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout
            process.stdout.close()

    def _cost(self, steps: int) -> Cost:
        self._ask(f"run {steps}")
        seconds, cpu_seconds = np.array([answer.split() for answer in self._answers()], float).T
        return Cost(seconds.mean(), cpu_seconds.sum())

    def _ask(self, question: str) -> None:
        for process in self._processes:
            assert process.stdin
            # If the process has died, the missing answer will tell.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(question + "\n")
                process.stdin.flush()

    def _answers(self) -> list[str]:
        answers = []
        for process in self._processes:
            assert process.stdout
            answer = process.stdout.readline().strip()
            if not answer:
                raise CannotRun(self._last_words(process.wait()))
            answers.append(answer)
        return answers

    def _last_words(self, exit_code: int) -> str:
        if exit_code == -signal.SIGKILL:
            return "killed: not enough memory?"
        lines = self._log.read_text().splitlines() or ["no message"]
        missing = lines[-1].startswith("ModuleNotFoundError")
        return f"{'not installed' if missing else 'failed'}: {lines[-1]}"


def _measure(
    job_file: pathlib.Path, threading: Threading, settings: Settings, log_prefix: str
) -> tuple[pd.DataFrame, dict[str, str]]:
    """All measurements of one model and threading, and why some contenders have none."""
    notes: dict[str, str] = {}
    rows = []
    with contextlib.ExitStack() as opened:
        racing = []
        reference = None
        for entry in tqdm.tqdm(settings.entries, desc="starting", unit="contender", leave=False):
            with _noted(notes, entry), contextlib.ExitStack() as attempt:
                running = _start(entry, job_file, threading, settings, log_prefix)
                attempt.callback(running.close)
                if entry.same_step:
                    update = running.update(job_file.with_name(f"{entry.name}.npy"))
                    reference = update if reference is None else reference
                    _check_same(update, reference)
                running.calibrate(settings.seconds)
                racing.append(running)
                opened.push(attempt.pop_all())  # who cannot run is closed, the others stay open
        for repetition in tqdm.trange(settings.repeats, desc="repetitions", leave=False):
            for running in racing:
                with _noted(notes, running.entry):
                    rows.append((running.entry.label, repetition, *running.ms_per_step()))
    columns = ["contender", "repetition", "ms_per_step", "cpu_ms_per_step"]
    return pd.DataFrame(rows, columns=columns), notes


@contextlib.contextmanager
def _noted(notes: dict[str, str], entry: Entry) -> Iterator[None]:
    """A contender that cannot run gets a note in the table; ours must run."""
    try:
        yield
    except CannotRun as error:
        if entry.name in ALWAYS:
            raise RuntimeError(f"{entry.label}: {error}") from None
        notes[entry.label] = str(error)


def _start(
    entry: Entry,
    job_file: pathlib.Path,
    threading: Threading,
    settings: Settings,
    log_prefix: str,
) -> Running:
    if entry.runs_all_clients and threading.threads > 1:
        raise CannotRun("has one thread per client")
    is_peer = entry.module in PEER_MODULES
    if is_peer and not pathlib.Path(settings.peer_python).exists():
        raise CannotRun(f"not installed (no {settings.peer_python})")
    python = settings.peer_python if is_peer else sys.executable
    module = f"{__package__}.{entry.module}"
    command = [python, "-m", module, entry.name, str(job_file)]
    return Running(entry, threading, command, pathlib.Path(f"{log_prefix}-{entry.name}.log"))


def _check_same(update: np.ndarray, reference: np.ndarray) -> None:
    error = np.linalg.norm(update - reference) / np.linalg.norm(reference)
    if not error <= TOLERANCE:
        raise CannotRun(f"another job: its noiseless step is {error:.1e} away from ours")
