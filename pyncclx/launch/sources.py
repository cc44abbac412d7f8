"""The files of cuda/ with kernels: which kernels each has, and the template arguments that they can have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..arrays import datatypes
from ..errors import NotSupported
from ..operators import bound_op, ops
from ..operators.linked import HALVES

Template = tuple[str, ...]

# C++ words by their bytes: for kernels that copy or compare an element's bits.
WORDS = {nbytes: datatypes.TABLE[f"uint{8 * nbytes}"].cxx for nbytes in (1, 2, 4, 8)}
_LONG = "_long"  # ends the name of a kernel for messages of any length, beside one for packets and lines alone
MOST_ATOMIC_NBYTES = 8  # of an element that a GPU changes atomically


def _bytes() -> list[Template]:
    """Of kernels that move bytes, and are no templates."""
    return [()]


def _unlimited() -> list[Template]:
    """Of kernels for a program's own functions: none is known beforehand."""
    return []


def _reductions() -> list[Template]:
    """<element, operator>."""
    types = datatypes.TABLE.values()
    return [(row.cxx, op.cxx) for row in types for op in ops.TABLE.values() if row.kind in op.kinds]


def _reductions_without_halves() -> list[Template]:
    halves = {datatypes.TABLE[name].cxx for name in HALVES}
    return [template for template in _reductions() if template[0] not in halves]


def _dispatches() -> list[Template]:
    """<token, row>."""
    return [
        *(("float", "float"), ("float", "Half"), ("float", "Bfloat16"), ("float", "Float8")),
        *(("Half", "Half"), ("Half", "Float8"), ("Bfloat16", "Bfloat16"), ("Bfloat16", "Float8")),
    ]


def _combines() -> list[Template]:
    """<result, sum>."""
    return [("float", "float"), ("Half", "Half"), ("Half", "float"), ("Bfloat16", "Bfloat16"), ("Bfloat16", "float")]


def _atomics() -> list[Template]:
    """<word, what becomes of it>, <element, operator>."""
    types = [row for row in datatypes.TABLE.values() if row.itemsize <= MOST_ATOMIC_NBYTES]
    reductions = [op for op in ops.TABLE.values() if op.mpi is not None]
    bitwise = [(word, name) for word in WORDS.values() for name in ("Replace", "NoOp", "CompareAndSwap")]
    return [*bitwise, *((row.cxx, op.cxx) for row in types for op in reductions if row.kind in op.kinds)]


class Source(NamedTuple):
    """A file of cuda/."""

    kernels: tuple[str, ...]
    templates: Callable[[], list[Template]] = _bytes  # all template arguments that they can have


FILES = {
    "collectives/barrier.cu": Source(("barrier",)),
    "collectives/bcast.cu": Source(("bcast_direct", "bcast_direct_long", "bcast_two_shot_lines", "bcast_chain")),
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
    "collectives/reduce_chain.cu": Source(("reduce_chain",), _reductions_without_halves),
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
    "windows/rma.cu": Source(("accumulate",), _atomics),
    "windows/signals.cu": Source(("put_blocks", "put_signal", "wait_signal")),
}
_OF_BYTES = [source.kernels for source in FILES.values() if source.templates is _bytes]
# Those with others in their file are templates all the same, for of templates NVRTC compiles only what is asked for.
_BESIDE_OTHERS = {kernel for kernels in _OF_BYTES if len(kernels) > 1 for kernel in kernels}
REDUCTIONS = tuple(
    file for file, source in FILES.items() if source.templates in (_reductions, _reductions_without_halves)
)

# Of operations that move bytes, the kernels of short messages: a program that calls one operation calls these, too.
LIKELY = ("bcast_direct", "allgather", "alltoall", "gather", "scatter")

RECORDS = "collectives/records.cu"
# Of a kernel, the one in RECORDS for elements that do not fill 16 bytes evenly. Its pipelines take messages of any
# length, those of medium length too, which have kernels of their own elsewhere.
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
    """Return the C++ name of a kernel: ``allreduce_one_shot<float, Sum>``, ``alltoall<true>``, ``barrier``."""
    if template:
        return f"{kernel}<{', '.join(template)}>"
    if kernel not in _BESIDE_OTHERS:
        return kernel
    short = kernel.removesuffix(_LONG)
    if short + _LONG in _BESIDE_OTHERS:  # one template for both (exchange.cuh)
        return f"{short}<{'false' if kernel == short else 'true'}>"
    return f"{kernel}<>"


def check_records(operation: str, kernel: str, template: Template) -> None:
    """Raise NotSupported if a program's operator takes elements that an operation has no kernel for."""
    operator = bound_op.named(template)
    if operator is not None and operator.of_records and kernel not in RECORD_KERNELS:
        raise NotSupported(
            f"{operation}: elements of {operator.types.itemsize} bytes; pad the record to 1, 2, 4, 8 or 16 bytes, or "
            "use Allreduce, Reduce or Reduce_scatter_block"
        )
