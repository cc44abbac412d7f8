"""FBPIC: steps of a periodic plasma wave, a particle-in-cell code with spectral solver.

On GPUs it stages what it sends through the host, unless FBPIC_ENABLE_GPUDIRECT tells it that MPI takes device arrays.
"""

import os

import numpy as np
from mpi4py import MPI
from scipy.constants import c, e, epsilon_0, m_e

from support.clients.record import timed, value

from fbpic.main import Simulation  # isort: skip

comm = MPI.COMM_WORLD
on_gpu = os.environ["CLIENT_DEVICE"] == "gpu"
cells_z, cells_r, steps = (1024, 128, 40) if on_gpu else (512, 16, 2)
density, length, radius, amplitude = 2e24, 40e-6, 20e-6, 1e-2
k = 2 * np.pi / length * 4

sim = Simulation(
    *(cells_z, length, cells_r, radius, 2, length / cells_z / c),
    zmin=0.0,
    n_order=16,
    use_cuda=on_gpu,
    boundaries={"z": "periodic", "r": "reflective"},
    verbose_level=0,
)
electrons = sim.add_new_species(
    q=-e, m=m_e, n=density, dens_func=lambda z, r: np.ones_like(z), p_nz=2, p_nr=2, p_nt=8
)
electrons.uz[:] = amplitude * np.sin(k * electrons.z)
if on_gpu:
    import cupy

    sync = cupy.cuda.runtime.deviceSynchronize
else:
    sync = int


def step() -> None:
    sim.step(steps, show_progress=False)


timed(comm, "step", step, sync=sync, each=steps)
field = sim.fld.interp[0].Ez
energy = epsilon_0 * float(np.sum(np.abs(np.asarray(field)) ** 2))
momentum = float(np.sum(np.asarray(electrons.uz) ** 2))
value(comm, "energy of field and particles", *comm.allreduce(np.array([energy, momentum])))
