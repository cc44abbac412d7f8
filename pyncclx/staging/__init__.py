"""What no kernel does is done by MPI, on a copy of the device arrays in pinned host memory."""

from .methods import StagedCollectives, StagedMessages, StagedNeighbors, falls_back
from .operations import OPERATIONS

__all__ = ["OPERATIONS", "StagedCollectives", "StagedMessages", "StagedNeighbors", "falls_back"]
