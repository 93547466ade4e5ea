"""The TFF simulation runtime: one worker process, started, watched and ended by us.

TFF's own context leaves its `worker_binary` behind when Python ends, and lets it hold Python's
standard output open; this module starts the same binary under a watchdog instead. Nothing private
is in here: what a client reads, and what leaves it, is decided by the computations that run in it.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator

import grpc
import tensorflow_federated as tff

_LOG = logging.getLogger(__name__)

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

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 2_000_000_000),
    ("grpc.max_send_message_length", 2_000_000_000),
    ("grpc.enable_http_proxy", 0),  # an http_proxy variable must not capture loopback traffic
)


class WorkerError(RuntimeError):
    """The TFF worker did not start, does not answer, or has died."""


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """How the worker runs. One client per core is twice as fast as one client on all cores.

    Attributes:
        cores: Clients that train at the same time, with one thread each.
        start_seconds: How long the worker may take until it has answered its first call.
    """

    cores: int = dataclasses.field(default_factory=lambda: len(os.sched_getaffinity(0)))
    start_seconds: float = 120.0


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
    }


class Worker:
    """A TFF worker process on this machine, and the log file that its output goes to."""

    def __init__(self, config: RuntimeConfig):
        self._config = config
        self._log_file = tempfile.NamedTemporaryFile(prefix="tff_worker_", suffix=".log")  # noqa: SIM115
        self.address = f"localhost:{_free_port()}"
        command = [
            str(worker_binary()),
            f"--port={self.address.rpartition(':')[2]}",
            f"--max_concurrent_computation_calls={config.cores}",
        ]
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", *command],
            stdin=subprocess.PIPE,
            stdout=self._log_file,
            stderr=self._log_file,
            env=os.environ | worker_environment(config.cores),
            # Ctrl-C reaches Python only; Python then decides when the worker goes.
            start_new_session=True,
        )

    def check_alive(self) -> None:
        """Raises WorkerError, with the end of the worker's log, if the process has ended."""
        code = self._watchdog.poll()
        if code is not None:
            killed = code > 128
            advice = (
                "It was killed: was the memory used up? (`dmesg | tail` would tell.)"
                if killed
                else "Run `python -m experiments.doctor`."
            )
            raise WorkerError(
                f"The TFF worker ended with exit code {code}. {advice}\n{self.log_tail()}"
            )

    def log_tail(self, lines: int = 10) -> str:
        """The last lines that the worker wrote."""
        text = pathlib.Path(self._log_file.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """Ends the worker and waits until it is gone."""
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()
        self._log_file.close()


class _NoWorker(tff.framework.SyncContext):
    """The context outside `local_worker`. TFF's own would start a worker that nobody ends."""

    def invoke(self, comp, arg):
        raise WorkerError("No TFF worker runs: call the computation inside `local_worker()`.")


tff.framework.set_default_context(_NoWorker())


class _WorkerExecutorFactory(tff.framework.ResourceManagingExecutorFactory):
    """Executors on one worker. TFF retries a dead worker for ever; this says that it is dead."""

    def __init__(self, worker: Worker, stub: tff.framework.RemoteExecutorGrpcStub):
        super().__init__(self._executor)
        self._worker = worker
        self._stub = stub

    def _executor(self, cardinalities):
        executor = tff.framework.RemoteExecutor(self._stub)
        executor.set_cardinalities({tff.CLIENTS: 0} | cardinalities)
        return executor

    def create_executor(self, cardinalities):
        self._worker.check_alive()
        return super().create_executor(cardinalities)

    def clean_up_executor(self, cardinalities):
        # An executor on a dead worker cannot be closed, and its failure would start TFF's retries.
        with contextlib.suppress(Exception):
            super().clean_up_executor(cardinalities)


@contextlib.contextmanager
def local_worker(config: RuntimeConfig | None = None) -> Iterator[Worker]:
    """Runs every TFF computation inside the `with` block on a worker of our own.

    The worker is gone after the block: on normal exit, exception and Ctrl-C by the block's end, on
    SIGTERM and SIGKILL by the watchdog.
    """
    config = config or RuntimeConfig()
    worker = Worker(config)
    channel = grpc.insecure_channel(worker.address, _CHANNEL_OPTIONS)
    try:
        stub = tff.framework.RemoteExecutorGrpcStub(channel)
        _wait_until_ready(worker, stub, config.start_seconds)
        context = tff.framework.SyncExecutionContext(
            executor_fn=_WorkerExecutorFactory(worker, stub),
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        _check_first_call(worker, context, config.start_seconds)
        with tff.framework.get_context_stack().install(context):
            yield worker
    finally:
        worker.stop()
        channel.close()


def _wait_until_ready(
    worker: Worker, stub: tff.framework.RemoteExecutorGrpcStub, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while not stub.is_ready:
        worker.check_alive()
        if time.monotonic() > deadline:
            raise WorkerError(_no_answer(worker, seconds))
        time.sleep(0.02)


def _check_first_call(
    worker: Worker, context: tff.framework.SyncExecutionContext, seconds: float
) -> None:
    """Runs one tiny computation, so that a worker that hangs is noticed here and explained."""
    answer: list[object] = []
    one = tff.tensorflow.computation(lambda: 1)
    call = threading.Thread(target=lambda: answer.append(context.invoke(one, None)), daemon=True)
    call.start()
    call.join(seconds)
    if not answer:
        worker.check_alive()
        raise WorkerError(_no_answer(worker, seconds))


def _no_answer(worker: Worker, seconds: float) -> str:
    return (
        f"The TFF worker at {worker.address} runs but did not answer within {seconds:.0f} s. Usual "
        "causes: a firewall on the loopback interface, or a machine that is out of memory. "
        f"The end of its log:\n{worker.log_tail()}"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
