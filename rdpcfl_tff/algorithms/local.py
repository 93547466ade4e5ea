"""Local: every client trains a model of its own and sends nothing to anybody.

It is MR-MTL without a pull; what the simulation carries from round to round stays at the client.
"""

from rdpcfl_tff.algorithms.base import LocalTraining
from rdpcfl_tff.algorithms.mr_mtl import MRMTL


class Local(MRMTL):
    """Personal models that never meet."""

    def __init__(self, training: LocalTraining):
        super().__init__(training, pull=0.0)
