"""Takes the argument of a TFF computation apart by clients, and puts results together again.

Works on TFF's types alone: it knows neither the round nor what the clients send.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_federated as tff


def client_values(value: Any, value_type: tff.Type | None) -> Sequence | None:
    """What the first argument placed at the clients holds for each of them; None without one."""
    if value_type is None:
        return None
    if _one_per_client(value_type):
        return value
    for element, _, element_type in _elements(value, value_type):
        found = client_values(element, element_type)
        if found is not None:
            return found
    return None


def part(value: Any, value_type: tff.Type, clients: Sequence[int]) -> object:
    """The argument for these clients alone; what is placed at the server is for everyone."""
    if _one_per_client(value_type):
        return [value[client] for client in clients]
    if not isinstance(value_type, tff.StructType):
        return value
    return tff.structure.Struct(
        (name, part(element, element_type, clients))
        for element, name, element_type in _elements(value, value_type)
    )


def join(results: Sequence, result_type: tff.Type, shares: Sequence[Sequence[int]]) -> object:
    """One result from those of the shares of the clients, in the clients' order."""
    if _one_per_client(result_type):
        by_client = {
            client: value
            for share, values in zip(shares, results, strict=True)
            for client, value in zip(share, values, strict=True)
        }
        return [by_client[client] for client in sorted(by_client)]
    if not isinstance(result_type, tff.StructType):
        return results[0]
    joined = tff.structure.Struct(
        (name, join([tff.structure.from_container(one)[i] for one in results], type_, shares))
        for i, (name, type_) in enumerate(tff.structure.iter_elements(result_type))
    )
    return tff.types.type_to_py_container(joined, result_type)


def has_clients(result_type: tff.Type) -> bool:
    """Whether a part of the result is placed at the clients."""
    return _one_per_client(result_type) or any(
        has_clients(element) for element in _element_types(result_type)
    )


def has_server(result_type: tff.Type) -> bool:
    """Whether a part of the result is not placed at the clients."""
    if isinstance(result_type, tff.StructType):
        return any(has_server(element) for element in _element_types(result_type))
    return not _one_per_client(result_type)


def silo_of(task: object) -> str | None:
    """The silo that a client's value names, at any depth; None if it names none."""
    if not isinstance(task, Mapping):
        return None
    if "silo" in task:
        return task["silo"]
    return next((silo for value in task.values() if (silo := silo_of(value))), None)


def _one_per_client(value_type: tff.Type) -> bool:
    return (
        isinstance(value_type, tff.FederatedType)
        and value_type.placement is tff.CLIENTS
        and not value_type.all_equal
    )


def _element_types(value_type: tff.Type) -> list[tff.Type]:
    if not isinstance(value_type, tff.StructType):
        return []
    return [element for _, element in tff.structure.iter_elements(value_type)]


def _elements(value: Any, value_type: tff.Type) -> Iterator[tuple[Any, str | None, tff.Type]]:
    if isinstance(value_type, tff.StructType):
        elements = tff.structure.from_container(value)
        for element, (name, element_type) in zip(
            elements, tff.structure.iter_elements(value_type), strict=True
        ):
            yield element, name, element_type
