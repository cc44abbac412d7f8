"""Errors to plant, one at a time, in a copy of the sources: small edits that a programmer in a hurry might make.

`mutations.py` plants them, and runs the tests that should notice. Those of the protocols between ranks, which are
found by ThreadSanitizer and hostile memory, are in tests/protocol/test_mutations.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`before`, which occurs once in `file`, becomes `after`."""

    file: str
    before: str
    after: str
    tests: str  # files and folders below tests/
    ranks: int = 2  # that those in tests/ranks run on
    mpich: bool = False  # on MPICH, not Open MPI


KERNELS = {
    "Bcast: pieces are numbered from root on": Mutant(
        "cuda/collectives/bcast.cu",
        "(rank - root - 1 + size) % size",
        "(rank - root + size) % size",
        "ranks/collectives/test_bcast.py",
        3,
    ),
    "Bcast: the chain takes from the wrong peer": Mutant(
        "cuda/collectives/bcast.cu",
        "kNoRank : (me + size - 1) % size",
        "kNoRank : (me + 1) % size",
        "ranks/collectives/test_bcast.py",
        3,
    ),
    "Bcast: the chain drops the last, partial pack": Mutant(
        "cuda/collectives/bcast.cu",
        "move_packs<1, u32>(whole + crew.member, packs_in(nbytes)",
        "move_packs<1, u32>(whole + crew.member, nbytes / kPackNbytes",
        "ranks/collectives/test_bcast.py",
        3,
    ),
    "Gather: blocks in reversed order": Mutant(
        "cuda/collectives/gather.cu",
        "args.recv + rank * args.nbytes",
        "args.recv + (args.team.size - 1 - rank) * args.nbytes",
        "ranks/collectives/test_gather.py",
    ),
    "Scatter: root and rank swapped": Mutant(
        "cuda/collectives/scatter.cu",
        "args.send + rank * args.nbytes",
        "args.send + args.root * args.nbytes",
        "ranks/collectives/test_scatter.py",
    ),
    "Allgatherv: the displacement of another rank": Mutant(
        "cuda/collectives/allgatherv.cu",
        "args.begin_of[rank]",
        "args.begin_of[args.team.rank]",
        "ranks/collectives/test_allgatherv.py",
    ),
    "Scatterv: the length of root's block for all": Mutant(
        "cuda/collectives/scatterv.cu",
        "args.nbytes_of[rank]}",
        "args.nbytes_of[args.root]}",
        "ranks/collectives/test_scatterv.py",
    ),
    "Alltoallv: rows one past the end of sendbuf": Mutant(
        "cuda/collectives/alltoallv.cu",
        "count <= args.send_rows - displ;",
        "count <= args.send_rows - displ + 1;",
        "ranks/collectives/test_alltoallv_dynamic.py",
    ),
    "Alltoallv: rows past the capacity": Mutant(
        "cuda/collectives/alltoallv.cu",
        "begin < room ? smaller(span.nbytes, room - begin) : 0",
        "begin < room ? smaller(span.nbytes, room - begin) : span.nbytes",
        "ranks/collectives/test_alltoallv_routings.py ranks/collectives/test_alltoallv_dynamic.py",
    ),
    "Alltoallv: own rows are forgotten": Mutant(
        "cuda/collectives/alltoallv.cu",
        "if (rank == team.rank) word = sent;",
        "",
        "ranks/collectives/test_alltoallv_dynamic.py",
    ),
    "Alltoallv: blocks of segments begin one too late": Mutant(
        "cuda/collectives/alltoallv_segments.cu",
        "if (ends[middle] > begin + i) high = middle;",
        "if (ends[middle] >= begin + i) high = middle;",
        "ranks/collectives/test_alltoallv_segments.py",
    ),
    "Alltoallv: all segments go everywhere": Mutant(
        "cuda/collectives/alltoallv_segments.cu",
        "segment_word(length, false);",
        "segment_word(length, true);",
        "ranks/collectives/test_alltoallv_segments.py",
    ),
    "Datatypes: the run before the right one": Mutant(
        "cuda/derived/packing.cu",
        "nest.runs[middle].start <= begin",
        "nest.runs[middle].start < begin",
        "ranks/derived/test_datatype_kernels.py ranks/derived/test_derived_datatypes.py",
    ),
    "Datatypes: packed memory has the strides of memory": Mutant(
        "cuda/derived/packing.cu",
        "u64(i * dim.packed_stride)",
        "u64(i * dim.stride)",
        "ranks/derived/test_datatype_kernels.py ranks/derived/test_derived_datatypes.py",
    ),
    "Datatypes: the first tile of a nest is the last one's": Mutant(
        "cuda/derived/packing.cu",
        "args.nest[n + 1].first_tile <= tile",
        "args.nest[n + 1].first_tile < tile",
        "ranks/derived/test_datatype_kernels.py ranks/derived/test_derived_datatypes.py",
    ),
    "Accumulate: the neighbour in a word stays set": Mutant(
        "cuda/windows/rma.cu",
        "(word & ~mask) |",
        "word |",
        "ranks/windows/test_win_atomics.py",
    ),
    "Accumulate: operands swapped": Mutant(
        "cuda/windows/rma.cu",
        "T(Op::combine(A(current), A(value)))",
        "T(Op::combine(A(value), A(current)))",
        "ranks/windows/test_win_atomics.py",
    ),
    "Put_signal: counts twice": Mutant(
        "cuda/windows/signals.cu",
        "add_release_sys(args.word, u64(1));",
        "add_release_sys(args.word, u64(2));",
        "ranks/windows/test_win_signals.py",
    ),
    "Wait_signal: waits for one too few": Mutant(
        "cuda/windows/signals.cu",
        "atomic_add_gpu(args.taken, args.count) + args.count;",
        "atomic_add_gpu(args.taken, args.count) + args.count - 1;",
        "ranks/windows/test_win_signals.py",
    ),
    "Recv: every block writes to the beginning": Mutant(
        "cuda/messages/point_to_point.cu",
        "pull.to + part.begin, part.nbytes",
        "pull.to, part.nbytes",
        "ranks/messages/test_point_to_point.py",
    ),
    "Recv: no block is the last": Mutant(
        "cuda/messages/point_to_point.cu",
        "atomicAdd(pull.arrived, 1u) + 1 != gridDim.x",
        "atomicAdd(pull.arrived, 1u) + 1 < gridDim.x + 1",
        "ranks/messages/test_point_to_point.py",
    ),
    "Exscan: short vectors include the own one": Mutant(
        "cuda/collectives/scan.cu",
        "args.exclusive ? team.rank : team.rank + 1;",
        "team.rank + 1;",
        "ranks/collectives/test_scan.py",
    ),
    "Scan: averages of one rank too few": Mutant(
        "cuda/collectives/scan.cu",
        "deliver(rank, fold.result(rank + 1));",
        "deliver(rank, fold.result(rank > 0 ? rank : 1));",
        "ranks/collectives/test_scan.py",
    ),
    "Scan: prefixes lie where the shard began": Mutant(
        "cuda/collectives/scan.cu",
        "put_pack(reach.recv[rank] + to, i,",
        "put_pack(reach.recv[rank], i,",
        "ranks/collectives/test_scan.py ranks/memory/test_windows.py",
    ),
    "MINLOC: the larger index of equal values": Mutant(
        "cuda/elements/reduce_ops.cuh",
        "struct MinLoc : Operator {  // of equal values the smaller index, as MPI defines it\n    template <class V>\n"
        "    __device__ static Pair<V> combine(Pair<V> a, Pair<V> b) {\n"
        "        if (a.value == b.value) return {a.value, a.index < b.index ?",
        "struct MinLoc : Operator {  // of equal values the smaller index, as MPI defines it\n    template <class V>\n"
        "    __device__ static Pair<V> combine(Pair<V> a, Pair<V> b) {\n"
        "        if (a.value == b.value) return {a.value, a.index > b.index ?",
        "ranks/collectives/test_scan.py",
    ),
    "LXOR: compares numbers, not truth": Mutant(
        "cuda/elements/reduce_ops.cuh",
        "return A(!a != !b);",
        "return A(a != b);",
        "ranks/collectives/test_scan.py",
    ),
    "Reduce: averages of a chain are sums": Mutant(
        "cuda/collectives/reduce_chain.cu",
        "is_last ? args.team.size : 1",
        "1",
        "ranks/collectives/test_reduce.py",
        3,
    ),
    "Reduce: the chain folds from the wrong side": Mutant(
        "cuda/collectives/reduce_chain.cu",
        "hops[0].from > me,",
        "hops[0].from < me,",
        "ranks/collectives/test_reduce.py ranks/operators/test_user_op.py",
        3,
    ),
    "Reduce_scatter: parts of all grid blocks from one place": Mutant(
        "cuda/collectives/reduce_scatter.cu",
        "args.begin_of[rank] + mine.begin + begin;",
        "args.begin_of[rank] + begin;",
        "ranks/collectives/test_reduce_scatter.py",
    ),
    "Token shuffle: scales of half a group": Mutant(
        "cuda/elements/cast.cuh",
        "int lanes = kGroupLanes / 2;",
        "int lanes = kGroupLanes / 4;",
        "ranks/tokens",
    ),
    "Token shuffle: combine begins with itself": Mutant(
        "cuda/tokens/combine.cu",
        "source = team.rank + 1 + int(jobs.source(job));",
        "source = team.rank + 2 + int(jobs.source(job));",
        "ranks/tokens",
    ),
    "Token shuffle: collect reads the ways of another rank": Mutant(
        "cuda/tokens/collect.cu",
        "args.ways + source * shuffle.max_tokens * shuffle.k;",
        "args.ways + source * shuffle.max_tokens;",
        "ranks/tokens",
    ),
}

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
        "pyncclx/messages/receive.py",
        "if self._nbytes > self._capacity_nbytes:",
        "if False:",
        "ranks/messages/test_point_to_point.py",
    ),
    "the status has the length of the buffer": Mutant(
        "pyncclx/messages/receive.py",
        "min(self._nbytes, self._capacity_nbytes)",
        "self._capacity_nbytes",
        "ranks/messages/test_point_to_point.py",
    ),
    "an exception of a receive is swallowed": Mutant(
        "pyncclx/messages/receive.py",
        "self._error = self._error or error",
        "pass",
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
        "pyncclx/windows/changes.py",
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
    "the error of the last rank that failed": Mutant(
        "mpi_bootstrap/agreement.py",
        "verdicts[failed[0]]",
        "verdicts[failed[-1]]",
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

MUTANTS = KERNELS | PYTHON
