"""The table of collective operations, from which all lists of operations are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PAIR = ("sendbuf", "recvbuf")


@dataclass(frozen=True)
class Operation:
    """A collective operation.

    Attributes
    ----------
    name : str
        MPI's blocking method. `name.lower()` is the function that makes its calls.
    module : str
        File of `collectives/` with that function.
    buffers : tuple of str
        Names of the buffer arguments, in the method's order.
    op : int or None
        Position of the operator among the method's arguments; None if the operation does not reduce.
    has_one_length : bool
        Whether all ranks pass equally long messages, so that each rank may choose an algorithm by the length.
    on_all_ranks : str
        The buffer that every rank passes, if the other buffer is used at root only.
    blocks : tuple of str
        The buffers that have a block for each rank.
    pytorch : str
        Name in PyTorch's flight recorder; empty if its analyser has none.
    """

    name: str
    module: str
    buffers: tuple[str, ...] = PAIR
    op: int | None = None
    has_one_length: bool = False
    on_all_ranks: str = ""
    blocks: tuple[str, ...] = ()
    pytorch: str = ""

    @property
    def forms(self) -> tuple[str, str, str]:
        """Names of the blocking, nonblocking and persistent methods."""
        return forms(self.name)

    @property
    def is_of_neighbors(self) -> bool:
        """Whether ranks exchange only with their neighbours in a topology."""
        return self.name.startswith("Neighbor_")


def forms(name: str) -> tuple[str, str, str]:
    """Return a method's blocking, nonblocking and persistent names."""
    return name, f"I{name[0].lower()}{name[1:]}", f"{name}_init"


_SEND, _RECV = PAIR[:1], PAIR[1:]
# PyTorch's analyser compares the lengths of all operations but this one.
_ANY_LENGTHS = "all_to_all"


def _rows() -> Iterator[Operation]:
    """Yield the rows. A row's position is its number in kernels' error records."""
    yield Operation("Barrier", "barrier", (), pytorch="all_reduce_barrier")
    yield Operation("Bcast", "bcast", ("buf",), has_one_length=True, pytorch="broadcast")
    yield Operation("Reduce", "reduce", op=2, has_one_length=True, on_all_ranks="sendbuf", pytorch="reduce")
    yield Operation("Allreduce", "allreduce", op=2, has_one_length=True, pytorch="all_reduce")
    yield Operation("Allgather", "allgather", has_one_length=True, blocks=_RECV, pytorch="all_gather")
    yield Operation(
        "Reduce_scatter_block",
        "reduce_scatter",
        op=2,
        has_one_length=True,
        blocks=_SEND,
        pytorch="reduce_scatter",
    )
    yield Operation("Alltoall", "alltoall", has_one_length=True, blocks=PAIR, pytorch="all_to_all")
    yield Operation("Alltoallv", "alltoallv", blocks=PAIR, pytorch=_ANY_LENGTHS)
    yield Operation("Gather", "rooted", has_one_length=True, on_all_ranks="sendbuf", blocks=_RECV, pytorch="gather")
    yield Operation("Gatherv", "rooted", on_all_ranks="sendbuf", blocks=_RECV, pytorch=_ANY_LENGTHS)
    yield Operation("Scatter", "rooted", has_one_length=True, on_all_ranks="recvbuf", blocks=_SEND, pytorch="scatter")
    yield Operation("Scatterv", "rooted", on_all_ranks="recvbuf", blocks=_SEND, pytorch=_ANY_LENGTHS)
    yield Operation("Allgatherv", "allgather", has_one_length=True, blocks=_RECV, pytorch="_all_gather_base")
    yield Operation("Reduce_scatter", "reduce_scatter", op=3, has_one_length=True, blocks=_SEND, pytorch=_ANY_LENGTHS)
    yield Operation("Scan", "scan", op=2, has_one_length=True)
    yield Operation("Exscan", "scan", op=2, has_one_length=True)
    yield Operation("Alltoallw", "alltoallw", blocks=PAIR, pytorch=_ANY_LENGTHS)
    for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"):
        yield Operation(f"Neighbor_{name}", "neighbors")


COLLECTIVES = {row.name: row for row in _rows()}
DEVICE_TEAM = "device_team"  # the device functions of cuda/pyncclx.cuh, called by a program's own kernels
#: Names of the operations in kernels' error records, by number.
NAMES = (*COLLECTIVES, "Dispatch", "Combine", "Collect", DEVICE_TEAM)
NUMBERS = {name: number for number, name in enumerate(NAMES)}
_BLOCKING = {form: row.name for row in COLLECTIVES.values() for form in row.forms}


def blocking_form(name: str) -> str:
    """Return a method's blocking operation: Bcast for Ibcast and Bcast_init.

    Other methods keep their names.
    """
    return _BLOCKING.get(name, name)
