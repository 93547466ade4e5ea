"""The TFF computations inside this process, in ordinary TensorFlow: no worker, and GPUs.

TFF's wheel has its worker for the CPU only. TFF's own compiler splits the same computations into
plain TensorFlow pieces; here these run in a TensorFlow session, clients spread over the devices.
Nothing private is in here: a client's piece returns exactly what the client would send.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from rdpcfl_tff.errors import UserError, WorkerError
from rdpcfl_tff.execution import Execution

# A client of its own seldom fills a GPU: while one waits for the CPU, the other one works.
CLIENTS_PER_GPU = 2

_SERVER = "CPU:0"

# All values are flat lists of arrays, in the order in which TFF lists the parts of a type.
_Arrays = list[np.ndarray]
_Piece = Callable[[_Arrays], _Arrays]


def gpus() -> tuple[str, ...]:
    """The GPUs that TensorFlow sees, by the names that `in_process` takes."""
    return tuple(f"GPU:{number}" for number in range(len(tf.config.list_physical_devices("GPU"))))


def with_devices(execution: Execution, runtime: str) -> Execution:
    """The execution with the client devices that `--runtime` asks for on this machine."""
    named = execution.client_devices
    if named:
        seen = ("CPU:0", *gpus())
        unseen = [device for device in named if device.startswith("GPU") and device not in seen]
        if unseen:
            raise UserError(
                f"--client_devices={','.join(named)}: TensorFlow sees no {unseen[0]}, only "
                f"{', '.join(seen)}; docs/architecture.md says what a GPU needs"
            )
        return execution
    if runtime == "worker" or execution.workers:
        return execution
    devices = gpus() or (("CPU:0",) if runtime == "in_process" else ())
    return dataclasses.replace(execution, client_devices=devices)


def clients_at_once(devices: Sequence[str]) -> int:
    """One client per core, as in the worker; where there are GPUs, two on each of them."""
    on_gpus = sum(device.startswith("GPU") for device in devices)
    return CLIENTS_PER_GPU * on_gpus or len(os.sched_getaffinity(0))


@contextlib.contextmanager
def in_process(devices: Sequence[str]) -> Iterator[None]:
    """Runs every TFF computation inside the `with` block in this process.

    The server's pieces run on the CPU, client i's on device i modulo their number. Clients' results
    are added up in the clients' order, so that a repeated call gives the same bits.
    """
    if any(device.startswith("GPU") for device in devices):
        tf.config.experimental.enable_op_determinism()
    session = tf.compat.v1.Session(graph=tf.Graph(), config=_session_config(devices))
    with (
        contextlib.closing(session),  # `with session` would make its graph the default one
        concurrent.futures.ThreadPoolExecutor(clients_at_once(devices)) as pool,
    ):
        context = _InProcessContext(session, devices, pool)
        with tff.framework.get_context_stack().install(context):
            yield


def _session_config(devices: Sequence[str]) -> tf.compat.v1.ConfigProto:
    """One thread per client, as in the worker; a CPU:1 that is named is a part of the one CPU."""
    cpus = [int(device.partition(":")[2]) for device in devices if device.startswith("CPU")]
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": max(cpus, default=0) + 1},
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=clients_at_once(devices),
        use_per_session_threads=True,
        allow_soft_placement=True,  # files are read on the CPU
    )
    # TFF's compiler has optimised the pieces. A second time would make them slower.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


class _InProcessContext(tff.framework.SyncContext):
    """Compiles each computation once, and runs its pieces."""

    def __init__(
        self,
        session: tf.compat.v1.Session,
        devices: Sequence[str],
        pool: concurrent.futures.Executor,
    ):
        self._session = session
        self._devices = devices
        self._pool = pool
        self._compiled = functools.cache(self._compile)

    def invoke(self, comp, arg):
        """The computation's result; called by TFF."""
        try:
            return self._compiled(comp)(arg)
        except tf.errors.OpError as error:
            raise WorkerError(f"A computation failed in this process: {_reason(error)}") from error

    def _compile(self, comp: tff.Computation) -> Callable[[object], object]:
        result_type = comp.type_signature.result
        with _quiet_compiler():
            if comp.type_signature.parameter is None:
                return self._compile_without_argument(comp)
            if isinstance(result_type, tff.FederatedType) and result_type.placement is tff.CLIENTS:
                return self._compile_for_each_client(comp)
            return self._compile_aggregation(comp)

    def _compile_without_argument(self, comp: tff.Computation) -> Callable[[object], object]:
        result_type = comp.type_signature.result
        if isinstance(result_type, tff.FederatedType):
            comp = tff.backends.mapreduce.get_state_initialization_computation(comp)
        piece = self._piece(comp, _SERVER)
        return lambda _: _pack(piece([]), result_type)

    def _compile_for_each_client(self, comp: tff.Computation) -> Callable[[object], object]:
        server_type, client_type = comp.type_signature.parameter
        form = tff.backends.mapreduce.get_broadcast_form_for_computation(comp)
        prepare = self._piece(form.compute_server_context, _SERVER)
        work = self._client_pieces(form.client_processing)

        def run(argument):
            server, clients = argument
            broadcast = prepare(_flatten(server, server_type.member))
            arguments = [[*broadcast, *_flatten(one, client_type.member)] for one in clients]
            return [
                _pack(result, comp.type_signature.result.member)
                for result in self._on_clients(work, arguments)
            ]

        return run

    def _compile_aggregation(self, comp: tff.Computation) -> Callable[[object], object]:
        # The form wants a new state and an output. The state stays; the output is the result.
        @tff.federated_computation(comp.type_signature.parameter)
        def state_and_result(argument):
            return argument[0], comp(argument)

        server_type, client_type = comp.type_signature.parameter
        form = tff.backends.mapreduce.get_map_reduce_form_for_computation(state_and_result)
        if form.securely_aggregates_tensors:
            raise NotImplementedError("secure sums do not run in this process")
        prepare, zero, accumulate, report, update = (
            self._piece(piece, _SERVER)
            for piece in (form.prepare, form.zero, form.accumulate, form.report, form.update)
        )
        work = self._client_pieces(form.work)

        def run(argument):
            server, clients = argument
            state = _flatten(server, server_type.member)
            broadcast = prepare(state)
            arguments = [[*_flatten(one, client_type.member), *broadcast] for one in clients]
            sums = zero([])
            for result in self._on_clients(work, arguments):
                sums = accumulate([*sums, *result])
            state_and_result = update([*state, *report(sums)])
            return _pack(state_and_result[len(state) :], comp.type_signature.result)

        return run

    def _on_clients(self, pieces: list[_Piece], arguments: list[_Arrays]) -> Iterator[_Arrays]:
        """Each client's result, in the clients' order, while later clients still work."""
        return self._pool.map(
            lambda client: pieces[client % len(pieces)](arguments[client]), range(len(arguments))
        )

    def _client_pieces(self, comp: tff.Computation) -> list[_Piece]:
        return [self._piece(comp, device) for device in self._devices]

    def _piece(self, comp: tff.Computation, device: str) -> _Piece:
        """A TFF computation that is plain TensorFlow, as a function on the device."""
        tensorflow = tff.framework.serialize_computation(comp).tensorflow
        if tensorflow.initialize_op:
            raise NotImplementedError("TensorFlow variables do not run in this process")
        graph = tf.compat.v1.GraphDef()
        tensorflow.graph_def.Unpack(graph)
        inputs, outputs = _names(tensorflow.parameter), _names(tensorflow.result)
        with self._session.graph.as_default(), tf.device(device):
            tensors = tf.graph_util.import_graph_def(graph, return_elements=[*inputs, *outputs])
            feeds = tensors[: len(inputs)]
            # A session does not give back a tensor that it was fed with; it does give a copy.
            fetches = [tf.identity(tensor) for tensor in tensors[len(inputs) :]]

        def run(arguments: _Arrays) -> _Arrays:
            return self._session.run(fetches, dict(zip(feeds, arguments, strict=True)))

        return run


@contextlib.contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Without TFF's lines about every piece that it optimises, or finds too small for that."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reason(error: tf.errors.OpError) -> str:
    """What went wrong, without TensorFlow's pages about where."""
    told = re.split(r"Node: '.*'\n", error.message)[-1]
    return " ".join(told.partition("[[")[0].split())


def _names(binding) -> list[str]:
    """The tensors that a computation's parameter or result is bound to."""
    match binding.WhichOneof("binding"):
        case None:
            return []
        case "tensor":
            return [binding.tensor.tensor_name]
        case "struct":
            return [name for part in binding.struct.element for name in _names(part)]
        case other:
            raise NotImplementedError(f"a {other} does not run in this process")


def _flatten(value, type_: tff.Type) -> _Arrays:
    if isinstance(type_, tff.TensorType):
        return [np.asarray(value, tf.as_dtype(type_.dtype).as_numpy_dtype)]
    parts = tff.structure.to_elements(type_)
    values = [value[name] for name, _ in parts] if isinstance(value, Mapping) else list(value)
    return [
        array for one, (_, part) in zip(values, parts, strict=True) for array in _flatten(one, part)
    ]


def _pack(arrays: _Arrays, type_: tff.Type) -> object:
    """The arrays in the Python containers of the type."""
    remaining = iter(arrays)

    def pack(part: tff.Type) -> object:
        if isinstance(part, tff.FederatedType):
            return pack(part.member)
        if isinstance(part, tff.TensorType):
            return next(remaining)
        return tff.structure.Struct(
            [(name, pack(one)) for name, one in tff.structure.to_elements(part)]
        )

    return tff.types.type_to_py_container(pack(type_), type_)
