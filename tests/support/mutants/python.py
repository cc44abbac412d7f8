"""Errors in the Python code."""

from .mutant import Mutant

PYTHON = {
    "a root one past the last rank": Mutant(
        "pyncclx/collectives/arguments.py",
        "if not 0 <= rank < comm.size:",
        "if not 0 <= rank <= comm.size:",
        "ranks/communicator/test_bad_input.py",
    ),
    "a send buffer that is longer": Mutant(
        "pyncclx/collectives/arguments.py",
        "if send.count != recv.count:",
        "if send.count < recv.count:",
        "ranks/communicator/test_bad_input.py",
    ),
    "a block that is shorter than its place": Mutant(
        "pyncclx/collectives/arguments.py",
        "if send_nbytes != recv_nbytes:",
        "if send_nbytes > recv_nbytes:",
        "ranks/communicator/test_bad_input.py",
    ),
    "Gather in place: the block of rank 0": Mutant(
        "pyncclx/collectives/gather.py",
        "recv.address + root * recv.nbytes",
        "recv.address",
        "ranks/collectives/test_gather.py",
    ),
    "displacements in bytes": Mutant(
        "pyncclx/collectives/blocks.py",
        "displ * itemsize if count else 0",
        "displ if count else 0",
        "ranks/collectives/test_gatherv.py",
    ),
    "root's own block as long as its place is refused": Mutant(
        "pyncclx/collectives/blocks.py",
        "if send_nbytes > recv_nbytes",
        "if send_nbytes >= recv_nbytes",
        "ranks/collectives/test_gatherv.py",
    ),
    "neighbours below and above swapped": Mutant(
        "pyncclx/collectives/edges.py", "[edge ^ 1 for", "[edge for", "ranks/collectives/test_neighbors.py"
    ),
    "blocks of neighbours without the gaps of their datatype": Mutant(
        "pyncclx/collectives/neighbors.py",
        "each * whole.typemap.extent",
        "each * whole.typemap.size",
        "ranks/collectives/test_neighbors.py",
    ),
    "Allreduce of arrays on the device by MPI": Mutant(
        "pyncclx/collectives/allreduce.py",
        "if on_host(sendbuf, recvbuf):",
        "if True:",
        "ranks/collectives/test_allreduce.py",
    ),
    "packed blocks begin behind themselves": Mutant(
        "pyncclx/collectives/typed_exchange.py",
        "displs.append(end)",
        "displs.append(end + 8)",
        "ranks/collectives/test_alltoallw.py",
    ),
    "a message that is too long is not refused": Mutant(
        "pyncclx/messages/arrival.py",
        "if self._nbytes > self._capacity_nbytes:",
        "if False:",
        "ranks/messages/test_point_to_point.py",
    ),
    "the status has the length of the buffer": Mutant(
        "pyncclx/messages/arrival.py",
        "min(self._nbytes, self._capacity_nbytes)",
        "self._capacity_nbytes",
        "ranks/messages/test_point_to_point.py",
    ),
    "an exception of a receive is swallowed": Mutant(
        "pyncclx/messages/receive.py",
        "self._error = self._error or error\n        finally",
        "pass\n        finally",
        "ranks/messages",
    ),
    "a probe finds its message in the place of the source's": Mutant(
        "pyncclx/messages/probe.py",
        "status.Set_source(self.source)",
        "status.Set_source(0)",
        "ranks/messages/test_probe.py",
    ),
    "a probe leaves older messages behind": Mutant(
        "pyncclx/messages/probe.py",
        "MPI.ANY_TAG, status), status)",
        "probed.tag, status), status)",
        "ranks/messages/test_probe.py",
    ),
    "an error of one request of many is lost": Mutant(
        "pyncclx/requests/request.py",
        "        if errors:\n            raise errors[0]\n",
        "",
        "ranks/messages ranks/communicator/test_nonblocking.py",
    ),
    "an active request can be started": Mutant(
        "pyncclx/launch/prepared.py",
        "        if self.active:\n            raise",
        "        if False:\n            raise",
        "ranks/communicator/test_persistent.py",
    ),
    "leases overlap": Mutant(
        "pyncclx/memory/heap.py",
        "begin = lease.offset + lease.nbytes",
        "begin = lease.offset + lease.nbytes - ALIGNMENT",
        "host/memory ranks/communicator/test_communicators.py",
    ),
    "rings begin within the slots": Mutant(
        "pyncclx/memory/layout.py",
        "self.channels * 2 * self.peers * self.slot_packets",
        "self.channels * self.peers * self.slot_packets",
        "host/memory",
    ),
    "equal calls with another algorithm": Mutant(
        "pyncclx/launch/run.py",
        ", *map(key_of, options.values())",
        "",
        "ranks/launch/test_remembered_calls.py ranks/collectives/test_allreduce.py",
    ),
    "an equal call does not look for errors": Mutant(
        "pyncclx/launch/run.py",
        "    team.errors.check()\n    (_, function",
        "    (_, function",
        "ranks/team/test_failures.py ranks/launch/test_remembered_calls.py",
    ),
    "counts that were changed in place": Mutant(
        "pyncclx/launch/keys.py",
        ", value.tobytes()",
        "",
        "ranks/launch/test_remembered_calls.py",
    ),
    "an event is not emitted": Mutant(
        "pyncclx/launch/run.py",
        "    if began is not None:\n        _emit(comm, call.operation, began, args)\n    return True",
        "    return True",
        "ranks/observe",
    ),
    "signals of a window share words": Mutant(
        "pyncclx/windows/signals.py",
        "_WORD_NBYTES * number",
        "number",
        "ranks/windows/test_win_signals.py",
    ),
    "windows in units of one byte": Mutant(
        "pyncclx/windows/exposed.py",
        "begin = disp * place.disp_unit",
        "begin = disp",
        "ranks/windows",
    ),
    "a window is one element longer": Mutant(
        "pyncclx/windows/exposed.py",
        "begin + nbytes > place.nbytes",
        "begin + nbytes > place.nbytes + 1",
        "ranks/windows",
    ),
    "a lock is not held when Lock returns": Mutant(
        "pyncclx/windows/epochs.py",
        "super().Lock(rank, lock_type, assertion)\n        self._acquire(rank)",
        "super().Lock(rank, lock_type, assertion)",
        "ranks/windows",
        mpich=True,
    ),
    "no operation has an origin": Mutant(
        "pyncclx/windows/operations.py",
        'given["origin"] = given["result"]',
        "pass",
        "ranks/windows",
    ),
    "vectors in units of bytes": Mutant(
        "pyncclx/derived/typemap.py",
        "stride * base[0].extent)",
        "stride * base[0].size)",
        "host/derived ranks/derived",
    ),
    "parts of a structure are packed over each other": Mutant(
        "pyncclx/derived/typemap.py",
        "start += size * length",
        "start += size",
        "host/derived ranks/derived",
    ),
    "blocks that are not adjacent become one": Mutant(
        "pyncclx/derived/nest.py",
        "last.offset + last.nbytes == nest.offset and",
        "last.offset + last.nbytes <= nest.offset and",
        "host/derived",
    ),
    "offsets of rows without the last": Mutant(
        "pyncclx/tokens/rows.py",
        '"offsets": ((groups + 1,)',
        '"offsets": ((groups,)',
        "ranks/tokens",
    ),
    "the last byte that MPI has written stays behind": Mutant(
        "pyncclx/staging/copies.py",
        "int(changed[-1]) + 1",
        "int(changed[-1])",
        "ranks/staging",
    ),
    "bytes of others between those that MPI has written": Mutant(
        "pyncclx/staging/copies.py",
        "if changed.size == last - first:",
        "if changed.size:",
        "ranks/staging",
    ),
    "the error of another rank than the one that failed": Mutant(
        "mpi_bootstrap/agreement.py",
        "[comm.rank if data else comm.size]",
        "[comm.size - 1 - comm.rank if data else comm.size]",
        "ranks/mpi_bootstrap",
        3,
    ),
    "what succeeded elsewhere is not undone": Mutant(
        "mpi_bootstrap/agreement.py",
        "if failure is None and undo is not None:",
        "if False:",
        "ranks/mpi_bootstrap",
    ),
    "MIN on integers only": Mutant(
        "pyncclx/operators/ops.py", '"Min", "integer float"', '"Min", "integer"', "host/operators/test_ops.py"
    ),
}
