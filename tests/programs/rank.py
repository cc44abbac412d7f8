"""What a rank of a long-lived job does: it performs one program after another, and returns its notes."""

import faulthandler
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from typing import Any

from programs import acts, warm  # noqa: F401  what listings name
from programs.execute import Run, Side, described
from programs.memory import Gpu, Place
from programs.program import read
from programs.ways import WAYS

ARENA = 1 << 24  # bytes of comm.Alloc for all arrays of one program


class Pieces:
    """Memory from comm.Alloc, cut in pieces that are used again by the next program."""

    def __init__(self, arena: Any) -> None:
        self.arena, self.used = arena, 0

    def __call__(self, nbytes: int) -> Any:
        begin = self.used
        self.used = (begin + nbytes + 63) // 64 * 64
        if self.used > len(self.arena):
            raise MemoryError("a program needs more memory from comm.Alloc than the worker has")
        return self.arena[begin : begin + nbytes]


def side(way: str) -> Side:
    """Import what the way names; collective."""
    from mpi4py import MPI  # noqa: PLC0415  under the runner this is pyncclx.MPI

    mpi = getattr(MPI, "_MPI", MPI)
    if WAYS[way].start == "plain":
        import numpy as np  # noqa: PLC0415

        world = MPI.COMM_WORLD.Dup()
        MPI.Attach_buffer(bytearray(1 << 24))
        return Side(MPI, mpi, world, mpi.COMM_WORLD.Dup(), Place(Pieces(np.zeros(ARENA, "u1"))), has_partitions=False)
    import pyncclx  # noqa: PLC0415
    from pyncclx import MPI as ours  # noqa: PLC0415

    world = pyncclx.Communicator(mpi.COMM_WORLD) if WAYS[way].start == "communicator" else MPI.COMM_WORLD
    world = world.Dup()
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    if not on_host:
        world.select_device()
    mpi.Attach_buffer(bytearray(1 << 24))
    pieces = Pieces(world.Alloc(ARENA, "u1") if WAYS[way].layout is None else None)
    place = (Place if on_host else Gpu)(pieces)
    if WAYS[way].layout is not None:
        pieces.arena = place.device(ARENA)  # over nodes there is no memory that all ranks can map
    beside, aborts = mpi.COMM_WORLD.Dup(), WAYS[way].start == "runner"
    return Side(ours, mpi, world, beside, place, has_partitions=WAYS[way].layout is None, aborts=aborts)


def perform(sides: Side, text: str) -> tuple[Any, ...]:
    """Perform the program of a listing; returns its notes, and what it raised."""
    sides.place.pieces.used = 0
    run = None
    try:
        run = Run(sides, read(text))
        run.perform()
    except Exception as error:
        mpi_error = described(run, error) if run else type(error).__name__
        where = traceback.format_exc()
        return (run.notes if run else [], f"{run.at if run else 'the beginning'}: {mpi_error}: {error}", where)
    return run.notes, "", ""


def main() -> None:
    way, path = sys.argv[1:]
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    if WAYS[way].layout is not None:
        os.environ["PYNCCLX_NODE"] = WAYS[way].layout[rank]
    with open(f"{path}.{rank}", "w") as stacks:
        faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)
        sides = side(way)
        if isinstance(sides.place, Gpu):
            perform(sides, warm.program(sides.world.size).listing())
        link = socket.socket(socket.AF_UNIX)
        link.connect(path)
        send(link, (rank, os.getpid()))
        while (texts := receive(link)) is not None:
            for text in texts:
                answer = perform(sides, text)
                send(link, answer)
                if answer[1]:
                    break
    from mpi4py import MPI  # noqa: PLC0415

    MPI.Finalize()


def send(link: socket.socket, value: Any) -> None:
    """Send an object to the other end."""
    data = pickle.dumps(value, 5)
    link.sendall(struct.pack("q", len(data)) + data)


def receive(link: socket.socket) -> Any:
    """Receive an object, or None where the other end has closed."""
    head = exactly(link, 8)
    return None if head is None else pickle.loads(exactly(link, struct.unpack("q", head)[0]) or b"N.")


def exactly(link: socket.socket, nbytes: int) -> bytes | None:
    """Receive so many bytes, or None at the end."""
    data = bytearray()
    while len(data) < nbytes:
        more = link.recv(min(nbytes - len(data), 1 << 20))
        if not more:
            return None
        data += more
    return bytes(data)
