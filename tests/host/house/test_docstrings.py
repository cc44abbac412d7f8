"""The examples in docstrings run, on the host device with one rank."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = [path for package in ("mpi_bootstrap", "pyncclx") for path in sorted((ROOT / package).rglob("*.py"))]
OPTIONAL = {"autograd": "torch", "jax": "jax"}  # packages, and what their modules import
ABSENT = [package for package, module in OPTIONAL.items() if importlib.util.find_spec(module) is None]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if "    >>> " in path.read_text() and path.parent.name not in ABSENT
]
PROGRAM = """
import doctest, importlib, sys
import numpy as np
from mpi4py import MPI
import mpi_bootstrap, pyncclx
names = {"np": np, "MPI": MPI, "mpi_bootstrap": mpi_bootstrap, "pyncclx": pyncclx}
modules = [importlib.import_module(name) for name in sys.argv[1:]]
sys.exit(sum(doctest.testmod(module, extraglobs=names).failed for module in modules))
"""


def test_examples():
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYNCCLX_DEVICE": "host", "PYTHONPATH": path}
    command = [sys.executable, "-c", PROGRAM, *MODULES]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
