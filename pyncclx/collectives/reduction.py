"""The description of a reduction, and its call inside a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..launch.call import Call, Choice
from ..memory.parameters import ReduceArgs
from ..operators import ops
from ..operators.ops import BuiltinOp
from ..operators.user_op import Op as UserOp
from .arguments import Blocks, resolve_pair, unit_of


class Reduction(NamedTuple):
    """The checked arguments of a reduction. In place, both buffers are the same."""

    operation: str
    send: Buffer  # its count is that of one block if each rank receives a block of the result
    recv: Buffer  # the send buffer on ranks without a result
    op: BuiltinOp | UserOp
    algorithm: str | None
    root: int | None = None
    blocks: Blocks | None = None  # blocks of the send buffer if each has its own length

    @property
    def nbytes(self) -> int:
        """Bytes of the vector, or of the longest block if there are blocks."""
        return self.send.nbytes if self.blocks is None else max(self.blocks.nbytes)

    @property
    def template(self) -> tuple[str, ...]:
        """Template arguments of the kernel: element type and operator."""
        # Blocks are divided in units of whole records.
        unit = self.send if self.blocks is None else unit_of(self.send, self.blocks.nbytes)
        return ops.template(self.operation, self.op, unit)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Values that must be equal on all ranks."""
        named = self.send.datatype.name, self.op.name
        if self.blocks is not None:  # last: error messages truncate the signature, and this list is long
            return *named, f"{self.blocks.nbytes} bytes"
        root = () if self.root is None else (f"root {self.root}",)
        return self.send.count, *named, *root


def reduction_of(operation: str, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str | None) -> Reduction | None:
    """Describe a reduction with a result on every rank; return None for host arrays."""
    if on_host(sendbuf, recvbuf):
        return None
    send, recv = resolve_pair(operation, sendbuf, recvbuf)
    return Reduction(operation, send, recv, ops.of(op, operation), algorithm)


def reduction_call(
    given: Reduction, choose: Callable[..., Choice], arguments: bytes | None = None, *, also_sized: tuple[Any, ...] = ()
) -> Call:
    """Return the call of a reduction inside a node.

    Parameters
    ----------
    given : Reduction
    choose : callable
        Chooses a kernel from the layout, the number of bytes, the algorithm and `also_sized`.
    arguments : bytes, optional
        The packed arguments of a kernel that does not take `ReduceArgs`.
    also_sized : tuple
    """
    send, recv, root = given.send, given.recv, given.root
    if arguments is None:
        arguments = ReduceArgs(send=send.address, recv=recv.address, nbytes=send.nbytes, root=root or 0).pack()
    return Call(
        operation=given.operation,
        choose=choose,
        sized=(given.nbytes, given.algorithm, *also_sized),
        template=given.template,
        arguments=arguments,
        buffers=(send, recv),
        signature=(*given.signature, given.algorithm),
        root=root,
        moves=True,
    )
