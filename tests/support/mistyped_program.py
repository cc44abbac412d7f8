"""Mistakes that mypy --strict has to find: each line with a comment ``error``, by its code, and no other line."""

import numpy as np

import pyncclx
from pyncclx import MPI

comm = pyncclx.Communicator(MPI.COMM_WORLD)
x, y = np.ones(4), np.empty(4)

comm.Alreduce(x, y)  # error: attr-defined
comm.Allreduce(x)  # error: call-arg
comm.Allreduce(x, y, operator=MPI.SUM)  # error: call-arg
comm.Bcast(x, root="0")  # error: arg-type
comm.Reduce(x, y, MPI.SUM, None)  # error: arg-type
comm.Allreduce(x, y, op="sum")  # error: arg-type
comm.Send(x, dest=1.5)  # error: arg-type
comm.Recv(y, status=MPI.Request())  # error: arg-type
comm.bcast({"w": x}, "root")  # error: arg-type
comm.send(x)  # error: call-arg
count: str = comm.size  # error: assignment
MPI.COM_WORLD.Barrier()  # error: attr-defined
MPI.COMM_WORLD.Split(color="red")  # error: arg-type
MPI.Request.Waitall(comm.Isend(x, 0))  # error: arg-type
pyncclx.Communicator("world")  # error: arg-type
pyncclx.Comunicator()  # error: attr-defined
print(comm.Alloc(4).anything)
comm.Create_token_shuffle(num_experts=4, capacity=2, hidden=8)  # error: call-arg
text: int = comm.explain("Allreduce", 4096)  # error: assignment
