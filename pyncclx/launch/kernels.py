"""Compile, share and load kernels.

All ranks of a communicator need a kernel at the same time, so they prepare it together at its first use. One rank
compiles it or reads it from the cache on disk, while the others sleep. It sends them the binary, and all ranks load it
before any rank launches it. Loading a kernel later, while another kernel waits for a peer, could deadlock.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device, Function
from ..errors import CollectiveMismatch
from ..failures.error_record import failing_if_interrupted
from ..operators import linked
from ..operators.bound_op import BoundOp
from ..operators.kept import fingerprint
from ..recording.failures import noted
from ..system import settings
from ..system.cache_folders import cache_directory
from ..system.notes import called_if_long, note, reported_if_long
from ..system.process import held
from ..team.options import Options
from ..team.team import Team
from .sources import AT_ANY_TIME, FILES, LIKELY, RECORD_KERNELS, RECORDS, Template, file_of, instantiation

LONGEST_COMPILATION_S = 600.0  # added to PYNCCLX_TIMEOUT in waits for another rank's compiler

_loaded: dict[str, Function] = held({})  # instantiation -> function loaded in this process
_not_looked_for = list(LIKELY)  # kernels still to be compiled ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Kernels that are compiled together, by one rank.

    Attributes
    ----------
    names : sequence of str
    compile : callable
        Returns the image.
    load : callable
        Returns the kernels of an image by name.
    called : bytes
        Fingerprint of the program's function that the kernels call; empty if they call none.
    """

    names: Sequence[str]
    compile: Callable[[], bytes]
    load: Callable[[bytes], dict[str, Function]]
    called: bytes = b""


def get(comm: MPI.Intracomm, team: Team, file: str, kernel: str, *template: str) -> Function:
    """Return a loaded kernel of a file.

    Collective at the first use on this communicator.

    Raises
    ------
    RuntimeError
        On all ranks, with the compiler's log, if the kernel does not compile.
    """
    (function,) = get_several(comm, team, file, (kernel,), template)
    return function


def get_several(
    comm: MPI.Intracomm, team: Team, file: str, kernels: Sequence[str], template: Template = ()
) -> list[Function]:
    """Return loaded kernels of a file; ranks compile them in parallel."""
    keys = [(kernel, *template) for kernel in kernels]
    if not all(key in team.functions for key in keys):
        parts = _parts(team.device, file, kernels, template)
        with failing_if_interrupted(team.errors, kernels[0]):
            loaded = share(comm, team.device, parts, lambda: _compile_ahead(team.device, file, kernels, template))
        for kernel in FILES[file].kernels:
            name = instantiation(kernel, *template)
            if name in loaded:
                team.functions[(kernel, *template)] = loaded[name]
    return [team.functions[key] for key in keys]


def _compile_ahead(device: Device, file: str, kernels: Sequence[str], template: Template) -> None:
    """Compile in the background kernels that the next calls may need.

    These are the kernels of short messages, then the others of this operation.
    """
    if settings.AHEAD.get() and linked.named(template) is None:
        for kernel in _not_looked_for:  # only once, because each look-up reads the cache on disk
            device.compile_ahead(file_of(kernel), [[instantiation(kernel)]])
        _not_looked_for.clear()
        others = [kernel for kernel in FILES[file].kernels if kernel not in kernels]
        device.compile_ahead(file, [[instantiation(kernel, *template)] for kernel in others])


def compiled_together(file: str, kernels: Sequence[str], together: bool) -> list[Sequence[str]]:
    """Group a file's kernels for compilation: all in one group if `together`."""
    return [FILES[file].kernels] if together else [(kernel,) for kernel in kernels]


def _parts(device: Device, file: str, kernels: Sequence[str], template: Template) -> list[Part]:
    groups = compiled_together(file, kernels, device.compiles_together)
    return [_part(device, file, group, template) for group in groups]


def _part(device: Device, file: str, kernels: Sequence[str], template: Template) -> Part:
    function = linked.named(template)
    return Part(
        names=[instantiation(kernel, *template) for kernel in kernels],
        compile=lambda: compile_image(device, file, kernels, template),
        load=lambda image: load_image(device, file, kernels, template, image),
        called=b"" if function is None else fingerprint(function.fn),
    )


def share(
    comm: MPI.Intracomm, device: Device, parts: Sequence[Part], then: Callable[[], object] | None = None
) -> dict[str, Function]:
    """Return kernels by name, after all ranks have loaded them. Collective.

    The ranks divide the kernels that need to be compiled.

    Parameters
    ----------
    then : callable, optional
        Called on rank 0 after all ranks have loaded the kernels.

    Raises
    ------
    CollectiveMismatch
        On all ranks, if the ranks ask for different kernels.
    """
    names = [name for part in parts for name in part.names]
    ready = [all(name in _loaded for name in part.names) for part in parts]
    if isinstance(comm, Options):
        comm.state.meet(comm, call=names[0])
    # mpi4py's allgather of objects is not used here: its first call duplicates the communicator while it holds the
    # interpreter. If a peer duplicated another thread's communicator at that time, both ranks would wait forever.
    alike, called = list(map(linked.unnumbered, names)), [part.called for part in parts]
    gathered = mpi_bootstrap.allgather_bytes(comm, pickle.dumps((alike, ready, called)))
    wanted: list[tuple[list[str], list[bool], list[bytes]]] = list(map(pickle.loads, gathered))
    if any(each != alike for each, *_ in wanted):
        text = "; ".join(f"rank {rank}: {each[0]}" for rank, (each, *_) in enumerate(wanted))
        raise noted(CollectiveMismatch(f"ranks disagree about the call, whose kernels they have to prepare: {text}"))
    ready_on_ranks = zip(*(each for _, each, _ in wanted), strict=True)
    missing = [part for part, of_ranks in zip(parts, ready_on_ranks, strict=True) if not all(of_ranks)]
    if missing:
        # If ranks' functions have captured different values, each rank needs images of its own.
        apart = any(each != called for *_, each in wanted)
        with _reported(device, missing, reports=comm.rank == 0):
            images = _images(comm, missing, apart=apart)

        def load() -> None:
            _load(device, missing, images)
            if then is not None and comm.rank == 0:
                then()

        mpi_bootstrap.agree(comm, load)
    return {name: _loaded[name] for name in names}


def _images(comm: MPI.Intracomm, parts: Sequence[Part], *, apart: bool) -> list[bytes]:
    """Return the compiled image of each part. Collective.

    The ranks divide the parts and exchange the images; with `apart` each rank compiles all parts.
    """

    own_parts = parts if apart else parts[comm.rank :: comm.size]

    def compile_own() -> list[bytes]:
        try:
            with _shown(comm, "its compiler", own_parts):
                return [part.compile() for part in own_parts]
        finally:
            with mpi_bootstrap.interrupts_deferred(), _shown(comm, "the other ranks' compilers", parts):
                mpi_bootstrap.sleeping_barrier(comm, settings.TIMEOUT.get() + LONGEST_COMPILATION_S)

    own = mpi_bootstrap.agree(comm, compile_own)
    if apart:
        return own
    of_ranks = [pickle.loads(data) for data in mpi_bootstrap.allgather_bytes(comm, pickle.dumps(own))]
    return [of_ranks[i % comm.size][i // comm.size] for i in range(len(parts))]


def _shown(comm: MPI.Intracomm, what: str, parts: Sequence[Part]) -> AbstractContextManager[object]:
    """Publish what this process waits for while the block runs, for diagnosis."""
    if not (parts and isinstance(comm, Options)):
        return nullcontext()
    return comm.state.waiting(comm, what, _listed(parts))


def _load(device: Device, parts: Sequence[Part], images: Sequence[bytes]) -> None:
    with _explained_if_long(device, parts):
        for part, image in zip(parts, images, strict=True):
            if not all(name in _loaded for name in part.names):
                _loaded.update(part.load(image))


def _explained_if_long(device: Device, parts: Sequence[Part]) -> AbstractContextManager[None]:
    """Return a context that logs why kernels load slowly, if they do.

    CUDA loads no module while the process has work on any stream of the GPU.
    """
    if device.loads_beside_kernels:
        return nullcontext()
    text = (
        f"loading {_listed(parts)} waits for all work of this process on the GPU. If that work waits for this call "
        "(Wait_signal, a collective that has begun), neither ends: make such a call once before"
    )
    return called_if_long(lambda: note(logging.WARNING, text))


def load_alone(device: Device, file: str) -> dict[str, Function]:
    """Return all kernels of a file that only moves bytes; not collective.

    This process compiles them at their first use.
    """
    loaded = _alone(device, _parts(device, file, FILES[file].kernels, ()))
    return {kernel: loaded[instantiation(kernel)] for kernel in FILES[file].kernels}


def load_for_any_time(device: Device) -> None:
    """Load in advance the kernels that a program may need while other kernels wait.

    Does nothing on a device that can load kernels while other kernels wait for peers.
    """
    if not device.loads_beside_kernels:
        for file in AT_ANY_TIME:
            load_alone(device, file)


def load_template(device: Device, file: str, kernel: str, *template: str) -> Function:
    """Return a kernel, compiled by this process at the first use; not collective."""
    return _alone(device, _parts(device, file, (kernel,), template))[instantiation(kernel, *template)]


def _alone(device: Device, parts: Sequence[Part]) -> dict[str, Function]:
    missing = [part for part in parts if not all(name in _loaded for name in part.names)]
    if missing:
        with _reported(device, missing, reports=MPI.COMM_WORLD.rank == 0):
            images = [part.compile() for part in missing]
        _load(device, missing, images)
    return {name: _loaded[name] for part in parts for name in part.names}


def _reported(device: Device, parts: Sequence[Part], *, reports: bool) -> AbstractContextManager[None]:
    return reported_if_long(f"{_listed(parts)} for {device.architecture}", cache_directory, reports=reports)


def _listed(parts: Sequence[Part]) -> str:
    return ", ".join(part.names[0] + (" …" if len(part.names) > 1 else "") for part in parts)


def compile_image(device: Device, file: str, kernels: Sequence[str], template: Template) -> bytes:
    """Return the image of some kernels of a file, compiled or from the cache."""
    function = linked.named(template)
    if function is not None:
        source, names = _linked_names(function, file, kernels)
        return device.compile(source, sorted(set(names.values())), function)
    names_of_template = [instantiation(kernel, *template) for kernel in kernels]
    return device.compile(file, names_of_template, within=_all_names(file) if device.compiles_together else ())


def _all_names(file: str) -> list[str]:
    kernels, templates = FILES[file]
    return [instantiation(kernel, *each) for kernel in kernels for each in templates()]


def load_image(
    device: Device, file: str, kernels: Sequence[str], template: Template, image: bytes
) -> dict[str, Function]:
    """Load an image of `compile_image`; return its kernels by instantiation."""
    function = linked.named(template)
    if function is None:
        return dict(device.load(image))
    _, names = _linked_names(function, file, kernels)
    loaded = device.load(image, function)
    return {instantiation(kernel, *template): loaded[name] for kernel, name in names.items()}


def _linked_names(function: linked.LinkedFunction, file: str, kernels: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the file with the kernels that call a function, and their C++ names."""
    if isinstance(function, BoundOp) and function.of_records and set(kernels) <= set(RECORD_KERNELS):
        return RECORDS, {kernel: function.cxx_name(RECORD_KERNELS[kernel]) for kernel in kernels}
    return file, {kernel: function.cxx_name(kernel) for kernel in kernels}
