"""TFF workers on other machines, each next to the silos of its clients.

`python -m experiments.worker` starts one. Only ids, models and noised updates cross the network,
and they cross it in plain text: docs/scaling.md says how to put them into a tunnel.
"""

import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from rdpcfl_tff.errors import WorkerError
from rdpcfl_tff.federated.connection import Worker, WorkerLostError
from rdpcfl_tff.federated.context import WorkersContext

_LOG = logging.getLogger(__name__)

# A machine is taken for lost when it has not accepted a connection so many times in a row.
_PROBES = 3


class RemoteWorker(Worker):
    """A TFF worker that somebody else started, at host:port."""

    # A worker that was restarted is back within these.
    start_seconds = 20.0
    watch_seconds = 5.0

    def __init__(self, address: str):
        self.address = address
        self._failed_probes = 0

    def start(self) -> None:
        """Connects to the worker, also after it was lost."""
        self._failed_probes = 0
        self.connect()

    def stop(self) -> None:
        """Ends the connection. The worker goes on, for other runs."""
        self.disconnect()

    def check_alive(self) -> None:
        """Nothing is known of a process on another machine."""

    def check(self) -> None:
        """Notices a machine that is gone without a word, by its port."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            self._failed_probes = 0
        except OSError as error:
            self._failed_probes += 1
            if self._failed_probes >= _PROBES:
                raise WorkerLostError(self.loss(str(error))) from error

    def loss(self, fault: str) -> str:
        """What happened, as far as it can be seen from here."""
        return f"The TFF worker at {self.address} is lost: {fault}."

    def no_answer(self) -> str:
        """As `Worker.no_answer`, with how to start one."""
        port = self.address.rpartition(":")[2]
        return (
            f"{super().no_answer()} Start it there with `python -m experiments.worker "
            f"--port={port} --silos=FOLDER`, and see that no firewall is in between."
        )


@contextlib.contextmanager
def remote_workers(
    addresses: Sequence[str], silos: Sequence[str], retries: int, move: bool
) -> Iterator[None]:
    """Runs every TFF computation inside the `with` block on these workers, all at once.

    Args:
        addresses: host:port of each worker.
        silos: The clients' silos, by names that the workers know.
        retries: How often, in all, a worker that was lost is connected to again.
        move: Whether the others take over from a worker that stays lost; else the run stops.
    """
    workers = [RemoteWorker(address) for address in addresses]
    with contextlib.closing(WorkersContext(workers, retries, move)) as context:
        for worker in workers:
            worker.start()
        context.holders = _holders(workers, silos)
        with tff.framework.get_context_stack().install(context):
            yield


def _holders(workers: Sequence[Worker], silos: Sequence[str]) -> dict[str, list[Worker]]:
    """The workers that can read each silo, by asking them."""

    @tff.tensorflow.computation(tff.TensorType(np.str_, [len(silos)]))
    def readable(names):
        return tf.io.matching_files(names + "/train.labels")

    holders: dict[str, list[Worker]] = {silo: [] for silo in silos}
    for worker in workers:
        paths = worker.call(readable, list(silos))
        for path in paths:
            holders[path.decode().removesuffix("/train.labels")].append(worker)
        _LOG.info("worker %s: %d of %d silos", worker.address, len(paths), len(silos))
    missing = [silo for silo, found in holders.items() if not found]
    if missing:
        raise WorkerError(
            f"No worker has {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}: start "
            "the workers with --silos=FOLDER, the folder that has these"
        )
    return holders
