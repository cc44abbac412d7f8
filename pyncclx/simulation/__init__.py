"""python -m pyncclx simulate: how long making a communicator takes on more ranks than there are here.

The code that makes a communicator over nodes is run as it is, on one rank of each kind: the first, one in the middle,
the last. Ranks in symmetric places do the same, so that these stand for all. What they give MPI goes to a simulated one
(`communicator.py`), whose clock goes on by what the messages of a collective cost (`network.py`); what Python computes
is measured and added. `creation.py` runs the code, `measured.py` does the same on the ranks of a real job, `report.py`
prints, `plot.py` draws, and `command.py` is the command.

* Executed: the meeting of the ranks, `mpi_bootstrap.topology`, `Places`, `Spanning`, `Rails`, `MpiEngine`, and how the
  ranks of a rail get the identifier of NCCL's communicator.
* Modelled: MPI's messages, and the pauses of ranks that wait asleep. MPI_Comm_dup and MPI_Comm_create_group
  are taken for Allreduces.
* Measured beforehand and added: the Team of the eight ranks of a node, which does not depend on the number of nodes.
* Not in it: starting the processes, MPI_Init, compiling kernels, what NCCL does with the identifier.
"""
