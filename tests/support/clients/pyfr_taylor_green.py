"""PyFR: steps of a Taylor-Green vortex in a periodic box, by its CUDA backend where there is a GPU, else by OpenMP's.

On GPUs one option differs: PyFR copies what it sends through the host unless it is set that MPI takes device memory.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import mpi4py
import numpy as np
from pyfr.backends import get_backend
from pyfr.inifile import Inifile
from pyfr.mpiutil import get_local_rank, init_mpi, mpi
from pyfr.partitioners.base import BasePartitioner, write_partitioning
from pyfr.progress import NullProgressSequence
from pyfr.readers.gmsh import GmshReader
from pyfr.readers.native import NativeReader
from pyfr.solvers import get_solver

from support.clients.cuda_libraries import path_of
from support.clients.periodic_box import box, slabs
from support.clients.record import timed, value

on_gpu = os.environ["CLIENT_DEVICE"] == "gpu"
ELEMENTS = 24 if on_gpu else 6  # in each direction
STEPS = 10  # that are timed together
STEP = 2.0**-10  # so that times are exact, and no short step follows a last one
LINEARISATION = 1e-5  # as that of `pyfr import`
GAMMA, MACH, REYNOLDS = 1.4, 0.1, 1600

SETTINGS = f"""
[backend]
precision = double

[backend-cuda]
mpi-type = {"cuda-aware" if os.environ.get("CLIENT_GPU_AWARE") == "1" else "standard"}
# of kernels that are nearly as fast as each other, runs should choose the same
gimmik-nbench = 40

[constants]
gamma = {GAMMA}
mu = {1 / REYNOLDS}
Pr = 0.71

[solver]
system = navier-stokes
order = 3

[solver-time-integrator]
formulation = std
scheme = rk4
controller = none
tstart = 0
tend = {1000 * STEP}
dt = {STEP}

[solver-interfaces]
riemann-solver = rusanov
ldg-beta = 0.5
ldg-tau = 0.1

[solver-interfaces-quad]
flux-pts = gauss-legendre

[solver-elements-hex]
soln-pts = gauss-legendre

[soln-ics]
rho = 1
u = sin(x)*cos(y)*cos(z)
v = -cos(x)*sin(y)*cos(z)
w = 0
p = {1 / (GAMMA * MACH**2)} + (cos(2*x) + cos(2*y))*(cos(2*z) + 2)/16
"""


def initialise() -> Any:
    """Let PyFR initialise MPI, as its command does, unless that has been done; return the communicator."""
    mpi4py.rc.initialize = False
    if not mpi.Is_initialized():
        init_mpi()
    return mpi.COMM_WORLD


def name_libraries() -> None:
    """Set where CUDA's libraries are, unless the user has: PyFR looks for "libnvrtc.so" and the like."""
    for name in ("cuda", "nvrtc", "cublasLt"):
        found = "" if "PYFR_LIBRARY_PATH" in os.environ else path_of(name)
        if found:
            os.environ.setdefault(f"PYFR_{name.upper()}_LIBRARY_PATH", found)


def own_gpu() -> int:
    """The number of the GPU of this rank; ranks take turns where they are more than GPUs."""
    from pyfr.backends.cuda.driver import CUDA  # noqa: PLC0415  loads the driver

    return int(get_local_rank() % CUDA().device_count())


def write_mesh(folder: Path, ranks: int) -> Path:
    """Write PyFR's mesh of the box, in a part for each rank, and return its path.

    It is what `pyfr import` and `pyfr partition add` make, but that PyFR's partitioners need METIS, SCOTCH or KaHIP.
    """
    text, mesh = folder / "box.msh", folder / "box.pyfrm"
    text.write_text("".join(f"{line}\n" for line in box(ELEMENTS)))
    with text.open() as lines:
        GmshReader(lines, NullProgressSequence()).write(str(mesh), LINEARISATION)
    if ranks > 1:  # as one part it is there already
        with h5py.File(mesh, "r+") as file:
            connections, curved, offsets, _ = BasePartitioner.construct_global_con(file)
            parts = slabs(ELEMENTS, ranks)  # PyFR keeps the order of the elements
            made = BasePartitioner.construct_partitioning(file, curved, offsets, connections, parts)
            write_partitioning(file, str(ranks), made)
    return mesh


@contextlib.contextmanager
def mesh_for(comm: Any) -> Iterator[str]:
    """The path of a mesh, which the first rank makes, and which all have read at the end."""
    with tempfile.TemporaryDirectory() if comm.rank == 0 else contextlib.nullcontext("") as folder:
        made = str(write_mesh(Path(folder), comm.size)) if comm.rank == 0 else None
        yield comm.bcast(made)
        comm.Barrier()


def solver_of(comm: Any) -> Any:
    """PyFR's solver, before its first step."""
    settings = Inifile(SETTINGS)
    if on_gpu:
        name_libraries()
        settings.set("backend-cuda", "device-id", own_gpu())
    with mesh_for(comm) as path:
        reader = NativeReader(path)
        backend = get_backend("cuda" if on_gpu else "openmp", settings)
        solver = get_solver(backend, reader.mesh, None, settings)
        reader.close()
    return solver


def main() -> None:
    comm = initialise()
    solver = solver_of(comm)
    timed(comm, "step", lambda: solver.advance_to(solver.tcurr + STEPS * STEP), each=STEPS)
    density, *momenta, energy = solver.soln[0].swapaxes(0, 1)
    value(comm, "time", solver.tcurr, solver.nsteps)
    value(comm, "kinetic energy", sum(np.sum(momentum**2 / density) for momentum in momenta) / 2)
    value(comm, "norms", *map(np.linalg.norm, map(np.ravel, (density, *momenta, energy))))


main()
