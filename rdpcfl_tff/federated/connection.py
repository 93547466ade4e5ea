"""A connection to one TFF worker: calls it, and notices within seconds when it is lost.

TFF itself calls a lost worker again and again, for ever. What crosses the connection is what the
computations take and return; nothing private is added here.
"""

import abc
import asyncio
import concurrent.futures
import contextlib
import functools
import math
import sys
import time
from typing import Any

import grpc
import tensorflow_federated as tff

from rdpcfl_tff.errors import WorkerError

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 2_000_000_000),
    ("grpc.max_send_message_length", 2_000_000_000),
    ("grpc.enable_http_proxy", 0),  # an http_proxy variable must not capture our traffic
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# A round has one number of clients, the server's work has none, and clients may drop out.
_EXECUTORS = 4

# Compiling takes seconds: once for all workers, and not again for one that was restarted.
compile_for_workers = functools.lru_cache(maxsize=64)(
    tff.backends.native.desugar_and_transform_to_native
)


class WorkerLostError(WorkerError):
    """The worker died or cannot be reached; the same call may succeed on another one."""


class Worker(abc.ABC):
    """A TFF worker, and the connection to it.

    Attributes:
        address: host:port.
        start_seconds: How long it may take until it has answered its first call.
        watch_seconds: The time between two looks at the worker while a call lasts.
    """

    address: str
    start_seconds: float
    watch_seconds: float

    _channel: grpc.Channel | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Connects to the worker, also after it was lost; WorkerLostError if that fails."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the connection, and a call that is under way."""

    @abc.abstractmethod
    def check_alive(self) -> None:
        """Raises WorkerLostError if the worker is known to have ended."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises WorkerLostError if the worker can be seen not to work on a call any more."""

    @abc.abstractmethod
    def loss(self, fault: str) -> str:
        """Explains a connection that has failed with this fault."""

    def connect(self) -> None:
        """Connects, anew if need be, and makes one tiny call: a worker that hangs is noticed."""
        self.disconnect()
        self._channel = grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, f"worker {self.address}")
        stub = _Stub(self._channel)
        self._context = tff.framework.AsyncExecutionContext(
            executor_fn=_ExecutorFactory(stub),
            compiler_fn=compile_for_workers,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        deadline = time.monotonic() + self.start_seconds
        while not stub.is_ready:
            self.check_alive()
            if time.monotonic() > deadline:
                raise WorkerLostError(self.no_answer())
            time.sleep(0.02)
        self.call(tff.tensorflow.computation(lambda: 1), None, self.start_seconds)

    def call(
        self, computation: tff.Computation, argument: object, seconds: float = math.inf
    ) -> Any:
        """The computation's result; WorkerLostError if the worker is lost before it comes."""
        context = self._context
        call = self._thread.submit(lambda: asyncio.run(context.invoke(computation, argument)))
        if not self._wait(call, seconds):
            raise WorkerLostError(self.no_answer())
        try:
            return call.result()
        except _ConnectionLostError as lost:
            raise WorkerLostError(self.loss(str(lost))) from lost
        except grpc.RpcError as error:
            raise WorkerError(
                f"A computation failed on the TFF worker at {self.address}: {_details(error)}"
            ) from error

    def disconnect(self) -> None:
        """Ends the connection, and a call that is under way."""
        if self._channel is not None:
            self._channel.close()
            self._thread.shutdown()
            self._channel = None

    def no_answer(self) -> str:
        """Explains a worker that cannot be connected to, or hangs from the start."""
        return f"The TFF worker at {self.address} did not answer within {self.start_seconds:.0f} s."

    def _wait(self, call: concurrent.futures.Future, seconds: float) -> bool:
        """Whether the call is done in time; looks at the worker now and then."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if concurrent.futures.wait([call], timeout=min(left, self.watch_seconds)).done:
                return True
            self.check()
        return False


class _ConnectionLostError(Exception):
    """The channel has failed, or the worker does not know our executor any more."""


class _Stub(tff.framework.RemoteExecutorGrpcStub):
    """TFF's stub. What is released on a worker that is gone needs no release, and no error."""

    def dispose(self, request):
        with contextlib.suppress(grpc.RpcError, ValueError):  # ValueError: the channel is closed
            super().dispose(request)

    def dispose_executor(self, request):
        with contextlib.suppress(grpc.RpcError, ValueError):
            super().dispose_executor(request)


class _ExecutorFactory(tff.framework.ExecutorFactory):
    """Executors on one worker, one per number of clients, without TFF's endless retries."""

    def __init__(self, stub: _Stub):
        self._stub = stub
        self._executors: dict[int, tff.framework.RemoteExecutor] = {}

    def create_executor(self, cardinalities):
        clients = cardinalities.get(tff.CLIENTS, 0)
        executor = self._executors.pop(clients, None)
        if executor is None:
            executor = tff.framework.RemoteExecutor(self._stub)
            executor.set_cardinalities({tff.CLIENTS: clients})
        self._executors[clients] = executor
        # Each has threads on the worker, so the one that was used last of all goes.
        if len(self._executors) > _EXECUTORS:
            self._executors.pop(next(iter(self._executors))).close()
        return executor

    def clean_up_executor(self, cardinalities):
        """TFF calls this while the error of a call is on its way to its retries."""
        executor = self._executors.pop(cardinalities.get(tff.CLIENTS, 0), None)
        if executor is not None:
            executor.close()
        error = sys.exception()
        if isinstance(error, tff.framework.RetryableError):
            raise _ConnectionLostError(_details(error)) from error


def _details(error: Exception) -> str:
    return error.details() if isinstance(error, grpc.Call) else str(error)
