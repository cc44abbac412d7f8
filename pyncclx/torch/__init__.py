"""A backend of torch.distributed, which `import` registers as "pyncclx".

Start the processes by mpiexec. `init_process_group("pyncclx")` then takes ranks, size and store from MPI.

* `backend`: the process group, whose methods PyTorch calls; how processes find each other.
* `calls`: these methods, and how they call the communicator.
* `work`: what asynchronous calls return, and tensors as arguments and as places for results.
"""

from .backend import register

__all__: list[str] = []

register()
