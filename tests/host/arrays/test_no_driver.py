"""On a machine without a driver no memory is on a device: everything goes to MPI, and CuPy is not imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyncclx.system import driver

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(driver.is_there(), reason="this machine has a GPU")

PROGRAM = """
import sys
import numpy as np
from pyncclx import MPI


class Array:  # over host memory, as libraries for both kinds of memory make them
    def __init__(self, values, with_address=True):
        self.host = np.array(values, "f8")
        address = self.host.ctypes.data if self.host.size or with_address else None
        self.__cuda_array_interface__ = {
            "version": 3, "shape": self.host.shape, "typestr": "<f8", "data": (address, False)
        }


comm = MPI.COMM_WORLD
forms = {
    "alone": lambda array: array,
    "datatype": lambda array: (array, MPI.DOUBLE),
    "count": lambda array: [array, array.host.size],
    "both": lambda array: [array, array.host.size, MPI.DOUBLE],
    "vector": lambda array: [array, array.host.size // 2, MPI.DOUBLE.Create_vector(2, 1, 1).Commit()],
}
for name, form in forms.items():
    for count in (0, 4):
        for with_address in (True, False):
            x, y = Array(np.arange(count) + 1, with_address), Array(np.zeros(count), with_address)
            comm.Bcast(form(x))
            comm.Ibcast(form(x)).Wait()
            reductions = [comm.Allreduce, comm.Scan] if name != "vector" else []
            for call in (comm.Allgather, comm.Alltoall, comm.Gather, comm.Scatter, *reductions):
                y.host[:] = -1
                call(form(x), form(y))
                assert (y.host == x.host).all(), (name, call)
            y.host[:] = -1
            request = comm.Irecv(form(y), 0, 5)
            comm.Send(form(x), 0, 5)
            request.Wait()
            assert (y.host == x.host).all(), name
            request = comm.Send_init(form(x), 0, 6)
            request.Start()
            comm.Recv(form(y), 0, 6)
            request.Wait()
            comm.Sendrecv(form(x), 0, 7, form(y), 0, 7)
            win = MPI.Win.Create(form(y)[0] if name != "alone" else y, 8, comm=comm)
            win.Fence()
            if count:
                win.Put([x, count, MPI.DOUBLE], 0)
            win.Fence()
            win.Free()
assert comm.allreduce(3) == 3
assert not any(name.partition(".")[0] == "cupy" for name in sys.modules)
print("done")
"""


def test_all_goes_to_mpi(tmp_path):
    (tmp_path / "cupy.py").write_text("import os\nos._exit(66)\n")
    variables = {name: value for name, value in os.environ.items() if name != "PYNCCLX_DEVICE"}
    variables["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
