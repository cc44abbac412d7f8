"""The files of cuda/ with kernels, and the template arguments of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..arrays import datatypes
from ..errors import NotSupported
from ..operators import bound_op, ops
from ..operators.linked import HALVES

Template = tuple[str, ...]

# C++ integer types by their size in bytes, for kernels that copy or compare an element's bits.
WORDS = {nbytes: datatypes.TABLE[f"uint{8 * nbytes}"].cxx for nbytes in (1, 2, 4, 8)}
_LONG = "_long"  # suffix of an operation's second kernel, for any length; the first has packets and lines only
MOST_ATOMIC_NBYTES = 8  # size of the largest element that a GPU changes atomically


def _bytes() -> list[Template]:
    """Return one empty template: kernels that move bytes have no template arguments."""
    return [()]


def _unlimited() -> list[Template]:
    """Return no templates: the functions of a program are unknown in advance."""
    return []


def _reductions() -> list[Template]:
    """Return all templates <element, operator>."""
    types = datatypes.TABLE.values()
    return [(row.cxx, op.cxx) for row in types for op in ops.TABLE.values() if row.kind in op.kinds]


def _reductions_without_halves() -> list[Template]:
    halves = {datatypes.TABLE[name].cxx for name in HALVES}
    return [template for template in _reductions() if template[0] not in halves]


def _dispatches() -> list[Template]:
    """Return all templates <token, row>."""
    return [
        *(("float", "float"), ("float", "Half"), ("float", "Bfloat16"), ("float", "Float8")),
        *(("Half", "Half"), ("Half", "Float8"), ("Bfloat16", "Bfloat16"), ("Bfloat16", "Float8")),
    ]


def _combines() -> list[Template]:
    """Return all templates <result, sum>."""
    return [("float", "float"), ("Half", "Half"), ("Half", "float"), ("Bfloat16", "Bfloat16"), ("Bfloat16", "float")]


def _atomics() -> list[Template]:
    """Return all templates <word, bitwise operation> and <element, operator>."""
    types = [row for row in datatypes.TABLE.values() if row.itemsize <= MOST_ATOMIC_NBYTES]
    reductions = [op for op in ops.TABLE.values() if op.mpi is not None]
    bitwise = [(word, name) for word in WORDS.values() for name in ("Replace", "NoOp", "CompareAndSwap")]
    return [*bitwise, *((row.cxx, op.cxx) for row in types for op in reductions if row.kind in op.kinds)]


class Source(NamedTuple):
    """The kernels of a file of cuda/, and a function that returns all their templates."""

    kernels: tuple[str, ...]
    templates: Callable[[], list[Template]] = _bytes


FILES = {
    "collectives/barrier.cu": Source(("barrier",)),
    "collectives/bcast.cu": Source(
        ("bcast_direct", "bcast_direct_long", "bcast_two_shot_lines", "bcast_chain_lines", "bcast_chain")
    ),
    "collectives/allgather.cu": Source(("allgather", "allgather_long")),
    "collectives/alltoall.cu": Source(("alltoall", "alltoall_long")),
    "collectives/transformed.cu": Source(("allgather_transformed", "alltoall_transformed"), _unlimited),
    "collectives/transform_rows.cu": Source(("transform_rows",), _unlimited),
    "collectives/alltoallv.cu": Source(("alltoallv",)),
    "collectives/alltoallv_segments.cu": Source(("list_segments", "move_segments")),
    "collectives/gather.cu": Source(("gather", "gather_long")),
    "collectives/gatherv.cu": Source(("gatherv",)),
    "collectives/scatter.cu": Source(("scatter", "scatter_long")),
    "collectives/scatterv.cu": Source(("scatterv",)),
    "collectives/allgatherv.cu": Source(("allgatherv", "allgatherv_long")),
    "collectives/allreduce.cu": Source(
        ("allreduce_one_shot", "allreduce_two_shot_lines", "allreduce_two_shot"), _reductions
    ),
    "collectives/reduce.cu": Source(
        ("reduce_one_shot", "reduce_two_shot_lines", "reduce_two_shot", "reduce_two_shot_to_root"), _reductions
    ),
    "collectives/reduce_chain.cu": Source(("reduce_chain", "reduce_chain_lines"), _reductions_without_halves),
    "messages/point_to_point.cu": Source(("put_eager", "offer", "pull", "put_and_pull", "move_messages")),
    "messages/partitioned.cu": Source(("begin_rounds", "send_partitions", "await_partitions")),
    "derived/packing.cu": Source(("pack", "unpack")),
    "tokens/dispatch.cu": Source(("dispatch",), _dispatches),
    "tokens/combine.cu": Source(("combine",), _combines),
    "tokens/collect.cu": Source(("collect",)),
    "tokens/over_nodes.cu": Source(
        ("announce_choices", "number_choices", "place_choices", "pack_tokens", "join_values")
    ),
    "tokens/add_nodes.cu": Source(("add_nodes",), _combines),
    "collectives/reduce_scatter_block.cu": Source(
        ("reduce_scatter_block_one_shot", "reduce_scatter_block_one_shot_lines", "reduce_scatter_block_two_shot"),
        _reductions,
    ),
    "collectives/reduce_scatter.cu": Source(("reduce_scatter_one_shot", "reduce_scatter_two_shot"), _reductions),
    "collectives/fold.cu": Source(("fold",), _reductions),
    "collectives/scan.cu": Source(("scan_one_shot", "scan_two_shot"), _reductions),
    "windows/rma.cu": Source(("accumulate", "accumulate_nests"), _atomics),
    "windows/signals.cu": Source(("put_blocks", "put_signal", "wait_signal")),
}
_OF_BYTES = [source.kernels for source in FILES.values() if source.templates is _bytes]
# Several kernels in one file are templates, because NVRTC compiles only those templates that are requested.
_BESIDE_OTHERS = {kernel for kernels in _OF_BYTES if len(kernels) > 1 for kernel in kernels}

# Kernels for short messages of operations that move bytes: a program that calls one operation probably calls these too.
LIKELY = ("bcast_direct", "allgather", "alltoall", "gather", "scatter")

# Files of kernels that messages may need at any time, in whatever order ranks make their other calls.
AT_ANY_TIME = ("messages/point_to_point.cu", "messages/partitioned.cu", "derived/packing.cu")

RECORDS = "collectives/records.cu"
# For each kernel, its counterpart in RECORDS for elements whose size does not divide 16 bytes. The pipelines there take
# messages of any length. For medium lengths other files have separate kernels.
RECORD_KERNELS = {
    "allreduce_one_shot": "allreduce_records_one_shot",
    **dict.fromkeys(("allreduce_two_shot_lines", "allreduce_two_shot"), "allreduce_records_two_shot"),
    "reduce_one_shot": "reduce_records_one_shot",
    **dict.fromkeys(("reduce_two_shot_lines", "reduce_two_shot", "reduce_two_shot_to_root"), "reduce_records_two_shot"),
    "reduce_scatter_block_one_shot": "reduce_scatter_block_records_one_shot",
    **dict.fromkeys(
        ("reduce_scatter_block_one_shot_lines", "reduce_scatter_block_two_shot"),
        "reduce_scatter_block_records_two_shot",
    ),
}


@cache
def file_of(kernel: str) -> str:
    """Return the file of cuda/ that a kernel is in."""
    return next(file for file, source in FILES.items() if kernel in source.kernels)


def instantiation(kernel: str, *template: str) -> str:
    """Return a kernel's C++ name, such as ``allreduce_one_shot<float, Sum>``."""
    if template:
        return f"{kernel}<{', '.join(template)}>"
    if kernel not in _BESIDE_OTHERS:
        return kernel
    short = kernel.removesuffix(_LONG)
    if short + _LONG in _BESIDE_OTHERS:  # both kernels are made of one template (exchange.cuh)
        return f"{short}<{'false' if kernel == short else 'true'}>"
    return f"{kernel}<>"


def check_records(operation: str, kernel: str, template: Template) -> None:
    """Raise NotSupported if an operation has no kernel for an operator's elements."""
    operator = bound_op.named(template)
    if operator is not None and operator.of_records and kernel not in RECORD_KERNELS:
        raise NotSupported(
            f"{operation}: elements of {operator.types.itemsize} bytes; pad the record to 1, 2, 4, 8 or 16 bytes, or "
            "use Allreduce, Reduce or Reduce_scatter_block"
        )
