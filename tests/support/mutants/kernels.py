"""Errors in kernels: results are wrong on every schedule, or a rank waits for ever."""

from .mutant import Mutant

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
        "to + part.begin, part.nbytes",
        "to, part.nbytes",
        "ranks/messages/test_point_to_point.py",
    ),
    "Recv: no block is the last": Mutant(
        "cuda/messages/point_to_point.cu",
        "atomicAdd(arrived, 1u) + 1 != blocks",
        "atomicAdd(arrived, 1u) + 1 < blocks + 1",
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
        "struct MinLoc : Operator {\n    template <class V>\n"
        "    __device__ static Pair<V> combine(Pair<V> a, Pair<V> b) {\n"
        "        if (ties(a.value, b.value)) return {a.value, a.index < b.index ?",
        "struct MinLoc : Operator {\n    template <class V>\n"
        "    __device__ static Pair<V> combine(Pair<V> a, Pair<V> b) {\n"
        "        if (ties(a.value, b.value)) return {a.value, a.index > b.index ?",
        "ranks/collectives/test_allreduce.py",
    ),
    "LXOR: compares numbers, not truth": Mutant(
        "cuda/elements/reduce_ops.cuh",
        "return A(!a != !b);",
        "return A(a != b);",
        "ranks/collectives/test_allreduce.py",
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
    "Calls that differ: packets alone are believed": Mutant(
        "cuda/protocol/channel.cuh",
        "const bool compares = index == 0 && is_peer(peer) && comes(peer);",
        "const bool compares = false;",
        "ranks/team/test_mismatch.py",
    ),
    "Calls that differ: an announcement is believed": Mutant(
        "cuda/protocol/channel.cuh",
        "if (ago > 1 || u32(seen)",
        "if (ago != 1 || u32(seen)",
        "ranks/team/test_mismatch.py",
    ),
    "Calls that differ: the last one is forgotten": Mutant(
        "cuda/protocol/channel.cuh",
        "calls(begins ? with_call(calls_before, team) : calls_before)",
        "calls(begins ? with_call(0, team) : calls_before)",
        "ranks/team/test_mismatch.py",
    ),
    "Calls that differ: a wait does not look": Mutant(
        "cuda/protocol/wait.cuh",
        "what.channel == 0 && what.peer >= 0;",
        "what.channel == 0 && what.peer < 0;",
        "ranks/team/test_mismatch.py",
    ),
    "Calls that differ: the others get no text": Mutant(
        "pyncclx/team/error_record.py",
        "MISMATCH: losses.MISMATCH}",
        "MISMATCH: losses.ABORTED}",
        "ranks/team/test_mismatch.py",
    ),
}
