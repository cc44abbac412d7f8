"""Compile, share and load kernels.

All ranks of a communicator need a kernel at once, so they prepare it together at its first use there: rank 0 compiles
it (or finds it in the cache on disk), the others receive the binary, and all load it before any rank launches it. A
kernel loaded lazily, beside another one that waits for a peer, could wait for ever.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device, Function
from ..errors import CollectiveMismatch
from ..operators import linked
from ..operators.bound_op import BoundOp
from ..system.process import held
from ..team.team import Team
from .sources import FILES, RECORD_KERNELS, RECORDS, Template, instantiation

_loaded: dict[str, Function] = held({})  # instantiation -> function, of this process


def get(comm: MPI.Intracomm, team: Team, file: str, kernel: str, *template: str) -> Function:
    """Return a kernel of a file, ready to launch. Collective at the first use on this communicator.

    Raises
    ------
    RuntimeError
        On all ranks, with the compiler's log, if it does not compile.
    """
    key = (kernel, *template)
    if key not in team.functions:
        _prepare(comm, team, file, template)
    return team.functions[key]


def _prepare(comm: MPI.Intracomm, team: Team, file: str, template: Template) -> None:
    names = {kernel: instantiation(kernel, *template) for kernel in FILES[file].kernels}
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
    """Return kernels by these names, which rank 0 compiles and all ranks load, unless all have them. Collective.

    Raises
    ------
    CollectiveMismatch
        On all ranks, if they ask for different kernels.
    """
    ready = all(name in _loaded for name in names)
    # Not mpi4py's allgather of objects: at its first call it duplicates the communicator while it holds the
    # interpreter, and a peer may do so for the communicator of another thread.
    gathered = mpi_bootstrap.allgather_bytes(comm, pickle.dumps((names, ready)))
    wanted: list[tuple[list[str], bool]] = list(map(pickle.loads, gathered))
    if any(each != names for each, _ in wanted):
        text = "; ".join(f"rank {rank}: {each[0]}" for rank, (each, _) in enumerate(wanted))
        raise CollectiveMismatch(f"ranks disagree about the call, whose kernels they have to prepare: {text}")
    if not all(is_ready for _, is_ready in wanted):
        image = mpi_bootstrap.agree(comm, lambda: compile_names() if comm.rank == 0 else b"")
        image = MPI.Comm.bcast(comm, image)
        _loaded.update(mpi_bootstrap.agree(comm, lambda: {} if ready else load(image)))
    return {name: _loaded[name] for name in names}


def load_alone(device: Device, file: str) -> dict[str, Function]:
    """Return all kernels of a file that moves bytes, compiled by this process, for what is not collective."""
    if not all(name in _loaded for name in FILES[file].kernels):
        _loaded.update(device.load(compile_image(device, file, ())))
    return {name: _loaded[name] for name in FILES[file].kernels}


def load_template(device: Device, file: str, kernel: str, *template: str) -> Function:
    """Return a kernel, compiled by this process at the first use, for what is not collective."""
    name = instantiation(kernel, *template)
    if name not in _loaded:
        _loaded.update(device.load(compile_image(device, file, template)))
    return _loaded[name]


def compile_image(device: Device, file: str, template: Template) -> bytes:
    """Compile a file's kernels for a device: those of `template`, or all where it compiles whole files."""
    function = linked.named(template)
    if function is not None:
        source, names = _linked_names(function, file)
        return device.compile(source, sorted(set(names.values())), function)
    kernels, templates = FILES[file]
    wanted = templates() if device.compiles_whole_files else [template]
    return device.compile(file, [instantiation(kernel, *each) for kernel in kernels for each in wanted])


def load_image(device: Device, file: str, template: Template, image: bytes) -> dict[str, Function]:
    """Load what `compile_image` returned; by the kernels' names with their template arguments."""
    function = linked.named(template)
    if function is None:
        return dict(device.load(image))
    _, names = _linked_names(function, file)
    loaded = device.load(image, function)
    return {instantiation(kernel, *template): loaded[name] for kernel, name in names.items()}


def _linked_names(function: linked.LinkedFunction, file: str) -> tuple[str, dict[str, str]]:
    """Return the file with the kernels that call a function, and the C++ name there of each kernel of `file`."""
    kernels = FILES[file].kernels
    if isinstance(function, BoundOp) and function.of_records:
        return RECORDS, {kernel: function.cxx_name(RECORD_KERNELS[kernel]) for kernel in kernels}
    return file, {kernel: function.cxx_name(kernel) for kernel in kernels}
