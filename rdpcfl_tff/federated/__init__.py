"""Everything that knows TensorFlow Federated. Importing it takes TFF's own default context away."""

from rdpcfl_tff.federated import runtime as _runtime  # noqa: F401
