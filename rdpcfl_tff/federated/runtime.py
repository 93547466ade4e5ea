"""The TFF simulation runtime: one worker process, started, watched and ended by us.

TFF's own context leaves its `worker_binary` behind when Python ends, and lets it hold Python's
standard output open; this module starts the same binary under a watchdog instead. Nothing private
is in here: what a client reads, and what leaves it, is decided by the computations that run in it.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil
import tensorflow_federated as tff

from rdpcfl_tff.errors import WorkerError as WorkerError
from rdpcfl_tff.federated.connection import Worker, WorkerLostError
from rdpcfl_tff.federated.context import WorkersContext

# The shell waits for the worker and ends with its exit code. Its standard input is a pipe that only
# Python holds: when Python ends, however it ends (SIGKILL included), the pipe closes, `read`
# returns, and the worker is killed.
_WATCHDOG = """
exec 3<&0
"$@" 3<&- </dev/null &
worker=$!
( read -r _ <&3; kill -9 "$worker" ) 2>/dev/null &
guard=$!
wait "$worker"; code=$?
kill "$guard" 2>/dev/null
exit "$code"
"""


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """How a worker on this machine runs. One client per core is twice as fast as one on all cores.

    Attributes:
        cores: Clients that train at the same time, with one thread each.
        start_seconds: How long the worker may take until it has answered its first call.
        idle_seconds: A call hangs if the worker uses no second of the processor in so long. Slow
            work still uses the processor, so a slow machine gives no false alarm.
        retries: How often, in the whole run, a worker that died is started again.
    """

    cores: int = dataclasses.field(default_factory=lambda: len(os.sched_getaffinity(0)))
    start_seconds: float = 120.0
    idle_seconds: float = 600.0
    retries: int = 2


def worker_binary() -> pathlib.Path:
    """Where the installed TFF wheel keeps its worker."""
    return pathlib.Path(tff.__file__).parent / "data" / "worker_binary"


def worker_environment(cores: int) -> dict[str, str]:
    """The settings that decide the worker's speed, and the last bits of its results."""
    return {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": str(cores),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        # For sessions in this process; the worker would start threads for each computation.
        "TF_OVERRIDE_GLOBAL_THREADPOOL": "0",
    }


class LocalWorker(Worker):
    """A TFF worker process on this machine, and the log file that its output goes to.

    Args:
        config: How it runs.
        port: Where it listens; None for any free port, another one at each start.
        directory: Where relative names of silos begin; None for Python's own.
    """

    watch_seconds = 1.0

    def __init__(
        self,
        config: RuntimeConfig,
        port: int | None = None,
        directory: pathlib.Path | None = None,
    ):
        self._config = config
        self._port = port
        self._directory = directory
        self._watchdog: subprocess.Popen | None = None
        self.start_seconds = config.start_seconds
        self._log_file = tempfile.NamedTemporaryFile(prefix="tff_worker_", suffix=".log")  # noqa: SIM115

    def start(self) -> None:
        """Starts the process, anew if need be, and waits until it answers."""
        self._end_process()
        port = self._port or free_port()
        self.address = f"localhost:{port}"
        command = [
            str(worker_binary()),
            f"--port={port}",
            f"--max_concurrent_computation_calls={self._config.cores}",
        ]
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", *command],
            stdin=subprocess.PIPE,
            stdout=self._log_file,
            stderr=self._log_file,
            cwd=self._directory,
            env=os.environ | worker_environment(self._config.cores),
            # Ctrl-C reaches Python only; Python then decides when the worker goes.
            start_new_session=True,
        )
        self._busy_at = time.monotonic()
        self._busy_seconds = 0.0
        self.connect()

    def call(
        self, computation: tff.Computation, argument: object, seconds: float = math.inf
    ) -> Any:
        """As `Worker.call`."""
        self.check_alive()
        self._busy_at = time.monotonic()
        return super().call(computation, argument, seconds)

    def check_alive(self) -> None:
        """Raises WorkerLostError if the process has ended."""
        assert self._watchdog is not None
        code = self._watchdog.poll()
        if code is not None:
            raise WorkerLostError(self._ending(code))

    def check(self) -> None:
        """Raises WorkerLostError if the process has ended, or does nothing in a call."""
        self.check_alive()
        busy_seconds = self._processor_seconds()
        if busy_seconds > self._busy_seconds + 1:
            self._busy_seconds, self._busy_at = busy_seconds, time.monotonic()
        elif time.monotonic() - self._busy_at > self._config.idle_seconds:
            raise WorkerLostError(
                f"The TFF worker at {self.address} hangs: it has done nothing for "
                f"{self._config.idle_seconds:.0f} s of a call.\n{self._log_tail()}"
            )

    def loss(self, fault: str) -> str:
        """How the process ended, or the fault if it still runs."""
        assert self._watchdog is not None
        try:
            # The connection breaks a moment before the process is gone.
            return self._ending(self._watchdog.wait(timeout=5))
        except subprocess.TimeoutExpired:
            return f"The TFF worker at {self.address} failed: {fault}\n{self._log_tail()}"

    def no_answer(self) -> str:
        """As `Worker.no_answer`, with what usually causes it."""
        return (
            f"{super().no_answer()} Its process runs. Usual causes: a firewall on the loopback "
            f"interface, or a machine that is out of memory. The end of its log:\n"
            f"{self._log_tail()}"
        )

    def stop(self) -> None:
        """Ends the worker and waits until it is gone."""
        self.disconnect()
        self._end_process()
        self._log_file.close()

    def _end_process(self) -> None:
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait()

    def _ending(self, code: int) -> str:
        advice = (
            "It was killed: was the memory used up? (`dmesg | tail` would tell.)"
            if code > 128
            else "Run `python -m experiments.doctor`."
        )
        return f"The TFF worker ended with exit code {code}. {advice}\n{self._log_tail()}"

    def _log_tail(self, lines: int = 10) -> str:
        """The last lines that the worker wrote."""
        text = pathlib.Path(self._log_file.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _processor_seconds(self) -> float:
        """What the watchdog's child, the worker, has used of the processor."""
        assert self._watchdog is not None
        seconds = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._watchdog.pid).children():
                times = child.cpu_times()
                seconds += times.user + times.system
        return seconds


class _NoWorker(tff.framework.SyncContext):
    """The context outside `local_worker`. TFF's own would start a worker that nobody ends."""

    def invoke(self, comp, arg):
        raise WorkerError("No TFF worker runs: call the computation inside `local_worker()`.")


tff.framework.set_default_context(_NoWorker())


@contextlib.contextmanager
def local_worker(config: RuntimeConfig | None = None) -> Iterator[LocalWorker]:
    """Runs every TFF computation inside the `with` block on a worker of our own.

    A worker that dies is started again and the call repeated, `config.retries` times in all. The
    worker is gone after the block: on normal exit, exception and Ctrl-C by the block's end, on
    SIGTERM and SIGKILL by the watchdog.
    """
    config = config or RuntimeConfig()
    worker = LocalWorker(config)
    with contextlib.closing(WorkersContext([worker], config.retries)) as context:
        worker.start()
        with tff.framework.get_context_stack().install(context):
            yield worker


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
