"""python -m pyncclx simulate: time to make a communicator on thousands of ranks.

The code that creates a communicator over nodes runs unchanged on one rank of each kind: the first, a middle one, the
last. Ranks in symmetric places do the same, so these represent all ranks. They use a simulated MPI (`communicator.py`),
whose clock advances by the cost of a collective's messages (`network.py`). The time that Python computes is measured
and added. `creation.py` runs the code, also on the ranks of a real job; `command.py` prints and draws.

* Executed: the rendezvous of the ranks, `mpi_bootstrap.topology`, `NodeMap`, `Spanning`, `Rails`, `MpiEngine`, and the
  exchange of the identifier of NCCL's communicator on a rail.
* Modelled: MPI's messages, and the pauses of ranks that sleep in waits. MPI_Comm_dup and MPI_Comm_create are
  modelled as Allreduces.
* Measured beforehand and added: the Team of a node's eight ranks, which does not depend on the number of nodes.
* Not included: starting the processes, MPI_Init, compiling kernels, and what NCCL does with the identifier.
"""
