"""The backend "pyncclx" of torch.distributed; importing this module registers it.

Start the processes with mpiexec. `init_process_group("pyncclx")` then takes rank, size and store from MPI.

* `backend`: the process group, whose methods PyTorch calls; how processes find each other.
* `calls`: these methods, which call the communicator.
* `work`: the objects that calls return, and tensors as arguments and results.
"""

from .backend import register

__all__: list[str] = []

register()
