"""Runs every TFF computation on our workers: clients shared out over them, lost calls repeated.

A computation of ours is a pure function of its arguments, seeds included. So a call that is
repeated, on whatever worker, gives the same result and draws the same noise: nothing is released
twice.
"""

import concurrent.futures
import functools
import logging
import threading
from collections.abc import Mapping, Sequence

import tensorflow_federated as tff

from rdpcfl_tff.errors import WorkerError
from rdpcfl_tff.federated import client_parts
from rdpcfl_tff.federated.connection import Worker, WorkerLostError, compile_for_workers

_LOG = logging.getLogger(__name__)


class WorkersContext(tff.framework.SyncContext):
    """TFF's context over one worker or several.

    Clients that are shared out train at the same time, and the workers' partial sums are merged in
    the workers' order. The result is that of one worker, bit for bit, if merging does not round:
    the sums of a round are whole numbers for this reason.

    Args:
        workers: To be started before a computation runs.
        retries: How often, in all, a lost worker is started again.
        move: Whether the others take over from a worker that stays lost; else the run stops.

    Attributes:
        holders: The workers that have each silo; without an entry all of them have it.
    """

    def __init__(self, workers: Sequence[Worker], retries: int, move: bool = False):
        self.holders: Mapping[str, Sequence[Worker]] = {}
        self._workers = tuple(workers)
        self._live = list(workers)
        self._retries = retries
        self._retries_left = retries
        self._move = move
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(len(workers), "workers")

    def close(self) -> None:
        """Stops the workers, and with them the calls that are under way."""
        for worker in self._workers:
            worker.stop()
        self._pool.shutdown()

    def invoke(self, comp: tff.Computation, arg: object) -> object:
        """The computation's result; called by TFF."""
        tasks = client_parts.client_values(arg, comp.type_signature.parameter)
        if tasks is None or len(self._live) == 1:
            return self._on_one_worker(comp, arg)
        silos = [client_parts.silo_of(task) for task in tasks]
        result_type = comp.type_signature.result
        if not client_parts.has_server(result_type):
            results, shares = self._on_all_workers(comp, arg, silos)
            return client_parts.join(results, result_type, shares)

        if client_parts.has_clients(result_type):
            raise ValueError(
                f"{result_type}: a result at the server and the clients at once would make the "
                "clients work twice on several workers"
            )
        form = _mergeable_form(comp)
        sums, shares = self._on_all_workers(form.up_to_merge, arg, silos)
        total = functools.reduce(
            lambda one, other: self._on_one_worker(form.merge, _pair(one, other)), sums
        )
        some_clients = client_parts.part(arg, comp.type_signature.parameter, shares[0])
        return self._on_one_worker(form.after_merge, _pair(some_clients, total))

    def _on_one_worker(self, computation: tff.Computation, argument: object) -> object:
        """The result of a computation that is not shared out, on the first live worker."""
        while True:
            worker = self._live[0]
            try:
                return self._call(worker, computation, argument)
            except WorkerLostError as lost:
                self._drop(worker, lost)

    def _on_all_workers(
        self, computation: tff.Computation, argument: object, silos: Sequence[str | None]
    ) -> tuple[list, list[list[int]]]:
        """The results on shares of the clients, and the clients of each share."""
        compile_for_workers(computation)  # here, or every worker's thread would do it
        results, done = [], []
        waiting = list(range(len(silos)))
        while waiting:
            shares = self._share_out(waiting, silos)
            calls = {
                worker: self._pool.submit(
                    self._call,
                    worker,
                    computation,
                    client_parts.part(argument, computation.type_signature.parameter, share),
                )
                for worker, share in shares.items()
            }
            concurrent.futures.wait(calls.values())
            waiting = []
            for worker, call in calls.items():
                try:
                    results.append(call.result())
                    done.append(shares[worker])
                except WorkerLostError as lost:
                    self._drop(worker, lost)
                    waiting += shares[worker]
        return results, done

    def _share_out(
        self, clients: Sequence[int], silos: Sequence[str | None]
    ) -> dict[Worker, list[int]]:
        """Gives every client to a live worker that has its silo; the same way in every round."""
        able = {
            client: [worker for worker in self._live if self._has(worker, silos[client])]
            for client in clients
        }
        shares: dict[Worker, list[int]] = {worker: [] for worker in self._live}
        for client in sorted(clients, key=lambda client: (len(able[client]), client)):
            if not able[client]:
                raise WorkerError(
                    f"No worker that is left has {silos[client]}: its clients cannot be moved. "
                    "Start a worker next to it, or put the silos on a disk that all workers share."
                )
            shares[min(able[client], key=lambda worker: len(shares[worker]))].append(client)
        return {worker: sorted(share) for worker, share in shares.items() if share}

    def _has(self, worker: Worker, silo: str | None) -> bool:
        return silo is None or worker in self.holders.get(silo, self._live)

    def _call(self, worker: Worker, computation: tff.Computation, argument: object) -> object:
        """Calls the worker; starts it again and repeats the call while there are retries."""
        while True:
            try:
                return worker.call(computation, argument)
            except WorkerLostError as lost:
                with self._lock:
                    if self._retries_left == 0:
                        raise
                    self._retries_left -= 1
                _LOG.warning(
                    "%s Starting it again and repeating the call; the result stays the same "
                    "(%d of %d retries left).",
                    _first_line(lost),
                    self._retries_left,
                    self._retries,
                )
                worker.start()

    def _drop(self, worker: Worker, lost: WorkerLostError) -> None:
        """Goes on without the worker, or raises the reason why not."""
        if not self._move:
            raise WorkerError(f"{lost}\nGave up (--worker_retries={self._retries}).")
        self._live.remove(worker)
        worker.stop()
        if not self._live:
            raise WorkerError(f"{lost}\nNo worker is left.")
        _LOG.warning("%s Its clients move to the other workers.", _first_line(lost))


@functools.lru_cache(maxsize=64)
def _mergeable_form(computation: tff.Computation) -> tff.framework.MergeableCompForm:
    """The computation in three pieces: up to a worker's sums, their merging, and the rest."""
    return tff.backends.native.compile_to_mergeable_comp_form(computation)


def _pair(one: object, other: object) -> tff.structure.Struct:
    return tff.structure.Struct.unnamed(one, other)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
