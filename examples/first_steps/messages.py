"""First step 3: messages; MPI matches them, a kernel moves the data."""

from mpi4py import MPI

from start import comm, report, xp

right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

# Around a ring. The receive is posted first, so that no rank waits for
# another's receive.
x, y = xp.full(1000, comm.rank, "f4"), xp.empty(1000, "f4")
request = comm.Irecv(y, source=left, tag=1)
comm.Send(x, dest=right, tag=1)
request.Wait()
assert (y == left).all()

# The same in one call.
comm.Sendrecv(x, dest=right, recvbuf=y, source=left)

# A message of unknown length: ask for its length, then make an array.
request = comm.Isend(x[: 10 + comm.rank], dest=right, tag=2)
status = MPI.Status()
comm.Probe(source=left, tag=2, status=status)
found = xp.empty(status.Get_count(MPI.FLOAT), "f4")
comm.Recv(found, source=left, tag=2)
request.Wait()
assert found.size == 10 + left

# A column of a matrix, by a derived datatype: a kernel packs it, and
# another unpacks it.
matrix = xp.arange(12, dtype="f8").reshape(3, 4) + 100 * comm.rank
received = xp.zeros((3, 4))
column = MPI.DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8).Commit()
sent, target = [matrix, (1, 2), column], [received, (1, 0), column]
comm.Sendrecv(sent, dest=right, recvbuf=target, source=left)
assert (received[:, 0] == xp.array([2, 6, 10]) + 100 * left).all()

report("messages: done")
