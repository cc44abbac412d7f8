"""The backend "pyncclx" of torch.distributed; importing this module registers it.

Start the processes with mpiexec. `init_process_group("pyncclx")` then takes rank, size and store from MPI. Or start
them with torchrun; `init_process_group("pyncclx")` then also initializes MPI, which must be MPICH.

* `backend`: the process group, whose methods PyTorch calls; how processes find each other.
* `torchrun`: the initialization of MPI under torchrun. `pmi_server` is the program that serves it, `pmi_client` the
  connection of each process.
* `calls`: these methods, which call the communicator.
* `work`: the objects that calls return, and tensors as arguments and results.
"""

import atexit

import mpi4py
from torch import distributed

__all__: list[str] = []


def _finalize() -> None:
    torchrun.finalize()


# torchrun's processes are no ranks of MPI yet, so importing mpi4py.MPI must not initialize it. `torchrun.start` does.
# Functions that modules register for the exit from here on run before MPI is finalized.
if distributed.is_torchelastic_launched():
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    atexit.register(_finalize)

from . import torchrun  # noqa: E402
from .backend import register  # noqa: E402

register()
