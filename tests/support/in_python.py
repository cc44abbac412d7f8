"""A fixture that runs tests for the kernels written in Python too, on one node with GPUs and Numba."""

import functools
import importlib.util

import pytest

import pyncclx
from support.arrays import HOST
from support.reference import NODES

PRESENT = not HOST and not NODES and importlib.util.find_spec("numba_cuda") is not None


@pytest.fixture(params=[None, "numba"] if PRESENT else [None])
def also_in_python(request, monkeypatch):
    """Let `comm.Alltoallv` take algorithm="numba" by itself."""
    if request.param is not None:
        method = functools.partialmethod(pyncclx.Intracomm.Alltoallv, algorithm=request.param)
        monkeypatch.setattr(pyncclx.Intracomm, "Alltoallv", method)
