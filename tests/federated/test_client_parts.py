"""Arguments fall apart by clients and results come together again, whatever their types."""

import collections

import numpy as np
import tensorflow_federated as tff

from rdpcfl_tff.federated import client_parts

PER_CLIENT = tff.FederatedType(np.int32, tff.CLIENTS)
AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
PARAMETER = tff.StructWithPythonType(
    [("model", AT_SERVER), ("tasks", PER_CLIENT)], collections.OrderedDict
)


def test_a_part_has_its_clients_and_all_of_the_server():
    argument = tff.structure.Struct([("model", 0.5), ("tasks", [10, 11, 12])])
    taken = client_parts.part(argument, PARAMETER, [2, 0])
    assert (taken.model, taken.tasks) == (0.5, [12, 10])
    assert client_parts.client_values(argument, PARAMETER) == [10, 11, 12]
    assert client_parts.client_values(0.5, AT_SERVER) is None


def test_results_come_in_the_clients_order():
    two = tff.StructWithPythonType([PER_CLIENT, PER_CLIENT], tuple)
    results = [([1, 3], [10, 30]), ([0, 2], [0, 20])]
    joined = client_parts.join(results, two, [[1, 3], [0, 2]])
    assert joined == ([0, 1, 2, 3], [0, 10, 20, 30])


def test_placements_are_told_apart():
    both = tff.StructType([AT_SERVER, PER_CLIENT])
    assert client_parts.has_server(both) and client_parts.has_clients(both)
    assert client_parts.has_server(AT_SERVER) and not client_parts.has_clients(AT_SERVER)
    assert client_parts.has_clients(PER_CLIENT) and not client_parts.has_server(PER_CLIENT)


def test_a_silo_is_found_at_any_depth():
    assert client_parts.silo_of({"own_model": 1, "task": {"silo": "client_003"}}) == "client_003"
    assert client_parts.silo_of({"own_model": 1}) is None
    assert client_parts.silo_of(5) is None
