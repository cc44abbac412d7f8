"""Find, compile, share and preload kernels.

A kernel is needed by all ranks of a communicator at once, so it is prepared by all of them together, at its
first use there: rank 0 compiles (or finds it in the cache on disk), the others receive the binary, everybody
loads it before anybody launches. Loading lazily beside a kernel that waits for a peer could wait for ever.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache

from mpi4py import MPI

import mpi_bootstrap

from ..arrays import datatypes
from ..backends import Device, Function
from ..errors import CollectiveMismatch
from ..operators import ops, row_transform, user_op
from ..team.team import Team

# The kernels of each file of cuda/; a reduction's are templates over <type, operator>.
FILES: dict[str, tuple[str, ...]] = {
    "collectives/barrier.cu": ("barrier",),
    "collectives/bcast.cu": ("bcast_direct", "bcast_two_shot_lines", "bcast_chain"),
    "collectives/allgather.cu": ("allgather",),
    "collectives/alltoall.cu": ("alltoall",),
    "collectives/transformed.cu": ("allgather_transformed", "alltoall_transformed"),
    "collectives/alltoallv.cu": ("alltoallv",),
    "collectives/alltoallv_segments.cu": ("list_segments", "move_segments"),
    "collectives/gather.cu": ("gather",),
    "collectives/gatherv.cu": ("gatherv",),
    "collectives/scatter.cu": ("scatter",),
    "collectives/scatterv.cu": ("scatterv",),
    "collectives/allgatherv.cu": ("allgatherv",),
    "collectives/allreduce.cu": ("allreduce_one_shot", "allreduce_two_shot_lines", "allreduce_two_shot"),
    "collectives/reduce.cu": ("reduce_one_shot", "reduce_two_shot_lines", "reduce_two_shot", "reduce_two_shot_to_root"),
    "collectives/reduce_chain.cu": ("reduce_chain",),
    "messages/point_to_point.cu": ("put_eager", "offer", "pull", "put_and_pull"),
    "derived/packing.cu": ("pack", "unpack"),
    "tokens/dispatch.cu": ("dispatch",),
    "tokens/combine.cu": ("combine",),
    "tokens/collect.cu": ("collect",),
    "collectives/reduce_scatter_block.cu": (
        *("reduce_scatter_block_one_shot", "reduce_scatter_block_one_shot_lines", "reduce_scatter_block_two_shot"),
    ),
    "collectives/reduce_scatter.cu": ("reduce_scatter_one_shot", "reduce_scatter_two_shot"),
    "collectives/scan.cu": ("scan_one_shot", "scan_two_shot"),
    "windows/rma.cu": ("accumulate",),
    "windows/signals.cu": ("put_blocks", "put_signal", "wait_signal"),
}
REDUCTIONS = (
    "collectives/allreduce.cu",
    "collectives/reduce.cu",
    "collectives/reduce_chain.cu",
    "collectives/reduce_scatter_block.cu",
    "collectives/reduce_scatter.cu",
    "collectives/scan.cu",
)


# Of token shuffles: <type of the tokens, of the rows>, <of the results, of their sum>.
SHUFFLES: dict[str, list[tuple[str, ...]]] = {
    "tokens/dispatch.cu": [
        *(("float", "float"), ("float", "Half"), ("float", "Bfloat16"), ("float", "Float8")),
        *(("Half", "Half"), ("Half", "Float8"), ("Bfloat16", "Bfloat16"), ("Bfloat16", "Float8")),
    ],
    "tokens/combine.cu": [
        *(("float", "float"), ("Half", "Half"), ("Half", "float"), ("Bfloat16", "Bfloat16"), ("Bfloat16", "float")),
    ],
}

# Of one-sided operations that look at an element's bits alone; and the longest element that changes atomically.
BITWISE = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
BITWISE_OPS = ("Replace", "NoOp", "CompareAndSwap")
MOST_ATOMIC_NBYTES = 8

_loaded: dict[str, Function] = {}  # instantiation -> function, of this process


@cache
def file_of(kernel: str) -> str:
    """The file of cuda/ that a kernel is in."""
    return next(file for file, names in FILES.items() if kernel in names)


def instantiation(kernel: str, *template: str) -> str:
    """The C++ name of a kernel: ``allreduce_one_shot<float, Sum>``."""
    return f"{kernel}<{', '.join(template)}>" if template else kernel


def legal_templates(file: str) -> list[tuple[str, ...]]:
    """All template arguments that a file's kernels can be asked for; `[()]` for those that move bytes."""
    if file == "windows/rma.cu":
        return _atomic_templates()
    if file == "collectives/transformed.cu":  # a program's own
        return []
    if file not in REDUCTIONS:
        return SHUFFLES.get(file, [()])
    types = [t for t in datatypes.TABLE.values() if file != "collectives/reduce_chain.cu" or t.name not in ops.HALVES]
    return [(t.cxx, op.cxx) for t in types for op in ops.TABLE.values() if t.kind in op.kinds]


def _atomic_templates() -> list[tuple[str, ...]]:
    types = [row for row in datatypes.TABLE.values() if row.itemsize <= MOST_ATOMIC_NBYTES]
    reductions = [op for op in ops.TABLE.values() if op.mpi is not None]
    bitwise = [(word, op) for word in BITWISE.values() for op in BITWISE_OPS]
    return [*bitwise, *((t.cxx, op.cxx) for t in types for op in reductions if t.kind in op.kinds)]


def get(comm: MPI.Intracomm, team: Team, file: str, kernel: str, *template: str) -> Function:
    """The kernel, ready to launch. Collective at the first use on this communicator.

    Raises
    ------
    RuntimeError
        On all ranks, with the compiler's log, if it does not compile.
    """
    key = (kernel, *template)
    try:
        return team.functions[key]
    except KeyError:
        _prepare(comm, team, file, template)
    return team.functions[key]


def _prepare(comm: MPI.Intracomm, team: Team, file: str, template: tuple[str, ...]) -> None:
    names = {kernel: instantiation(kernel, *template) for kernel in FILES[file]}
    loaded = share(
        comm,
        list(names.values()),
        lambda: compile_image(team.device, file, template),
        lambda image: load_image(team.device, file, template, image),
    )
    team.functions.update({(kernel, *template): loaded[name] for kernel, name in names.items()})


def share(
    comm: MPI.Intracomm,
    names: list[str],
    compile_names: Callable[[], bytes],
    load: Callable[[bytes], dict[str, Function]],
) -> dict[str, Function]:
    """Kernels by these names, which rank 0 compiles and all ranks load, unless all have them. Collective.

    Raises
    ------
    CollectiveMismatch
        On all ranks, if they want different kernels.
    """
    ready = all(name in _loaded for name in names)
    # Not mpi4py's own, for objects: at its first call it duplicates the communicator and holds the interpreter
    # meanwhile, while the peer may do so for another thread's communicator.
    told = mpi_bootstrap.allgather_bytes(comm, pickle.dumps((names, ready)))
    wanted: list[tuple[list[str], bool]] = list(map(pickle.loads, told))
    if any(theirs != names for theirs, _ in wanted):
        said = "; ".join(f"rank {rank}: {theirs[0]}" for rank, (theirs, _) in enumerate(wanted))
        raise CollectiveMismatch(f"ranks disagree about the call, whose kernels they have to prepare: {said}")
    if not all(is_ready for _, is_ready in wanted):
        image = mpi_bootstrap.agree(comm, lambda: compile_names() if comm.rank == 0 else b"")
        image = MPI.Comm.bcast(comm, image)
        _loaded.update(mpi_bootstrap.agree(comm, lambda: {} if ready else load(image)))
    return {name: _loaded[name] for name in names}


def load_alone(device: Device, file: str) -> dict[str, Function]:
    """All kernels of a file that moves bytes, for operations that are not collective; compiled by this process."""
    if not all(name in _loaded for name in FILES[file]):
        _loaded.update(device.load(compile_image(device, file, ())))
    return {name: _loaded[name] for name in FILES[file]}


def load_template(device: Device, file: str, kernel: str, *template: str) -> Function:
    """A kernel for an operation that is not collective; compiled by this process at the first use."""
    name = instantiation(kernel, *template)
    if name not in _loaded:
        _loaded.update(device.load(compile_image(device, file, template)))
    return _loaded[name]


def _linked(template: tuple[str, ...]) -> user_op.Operator | row_transform.Linked | None:
    """The user's function that kernels of these template arguments are linked with, if there is one."""
    return user_op.named(template) or row_transform.named(template)


def compile_image(device: Device, file: str, template: tuple[str, ...]) -> bytes:
    """Compile a file's kernels for a device: those of `template`, or all where it compiles whole files."""
    linked = _linked(template)
    if linked is not None:
        return linked.compile(device, file, FILES[file])
    templates = legal_templates(file) if device.compiles_whole_files else [template]
    return device.compile(file, [instantiation(kernel, *t) for kernel in FILES[file] for t in templates])


def load_image(device: Device, file: str, template: tuple[str, ...], image: bytes) -> dict[str, Function]:
    """Load what `compile_image` gave; by the kernels' names with their template arguments."""
    linked = _linked(template)
    if linked is None:
        return dict(device.load(image))
    loaded = linked.load(device, image, file, FILES[file])
    return {instantiation(kernel, *template): function for kernel, function in loaded.items()}
