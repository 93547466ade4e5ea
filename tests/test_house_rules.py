"""Rules of this code base that no ready-made linter knows."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = sorted(
    path for package in ("rdpcfl_tff", "experiments") for path in (ROOT / package).rglob("*.py")
)


def handles_tensors(function: ast.AST) -> bool:
    """True for functions that TFF traces, and for those annotated with tf.Tensor."""
    if not isinstance(function, ast.FunctionDef):
        return False
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotations = [argument.annotation for argument in arguments] + [function.returns]
    written = [ast.unparse(node) for node in annotations if node] + [
        ast.unparse(node) for node in function.decorator_list
    ]
    return any("tf.Tensor" in text or "tensorflow.computation" in text for text in written)


def tensor_equalities(source: str) -> list[int]:
    """Lines with == or != inside functions that handle tensors: there it may mean identity."""
    return sorted(
        {
            comparison.lineno
            for function in ast.walk(ast.parse(source))
            if handles_tensors(function)
            for comparison in ast.walk(function)
            if isinstance(comparison, ast.Compare)
            and any(isinstance(op, ast.Eq | ast.NotEq) for op in comparison.ops)
        }
    )


def imported_packages(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_equality_rule_finds_the_trap():
    trap = """
@tff.tensorflow.computation(np.int32)
def accuracy(labels):
    return labels == labels

def helper(x: tf.Tensor):
    def inner():
        return x[0] != 0
    return inner

def python_only(name: str):
    return name == "cnn"
"""
    assert tensor_equalities(trap) == [4, 8]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_equality_sign_between_tensors(path):
    assert not tensor_equalities(path.read_text()), "use tf.equal or tf.not_equal"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_what_they_may(path):
    room = path.relative_to(ROOT).parts[:2]
    imports = imported_packages(path.read_text())
    if room != ("rdpcfl_tff", "federated"):
        assert "tensorflow_federated" not in imports, "only federated/ imports TFF"
    if room[0] != "experiments":
        assert "absl" not in imports, "only experiments/ reads flags"
        assert "experiments" not in imports
