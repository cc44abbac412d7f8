"""Peers of token shuffles: programs that use NCCL through PyTorch.

read      sorts the choices and exchanges counts, which the host reads; all_to_all_single moves the rows;
known     is read with counts and order that the host has cached;
padded    sends the largest number of rows of any pair of ranks, which the host has cached, between all pairs;
gathers   gathers tokens and choices of all ranks on all ranks, which select. Results come back by
          all_to_all_single, as one partial sum for every token of every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import timing
from .peers.pytorch import Torch

NAMES = ("read", "known", "padded", "gathers")
COLUMNS = "".join(f" {f'{name}: there':>14} {'back':>8}" for name in NAMES)


def columns_of(row: dict[str, Any]) -> str:
    """Return the peers' columns of a line; empty without peers."""
    if "read_dispatch_us" not in row:
        return ""
    return "".join(f" {row[f'{n}_dispatch_us']:>14.1f} {row[f'{n}_combine_us']:>8.1f}" for n in NAMES)


class Peers(Torch):
    """The programs that use NCCL, timed with pyncclx's tokens, choices and token type."""

    def measure(self, x: Any, chosen: Any, ranks: list[Any], setting: Any, arguments: Any) -> dict[str, float]:
        """Return the microseconds of each program's dispatch and combine."""
        torch, size = self.torch, self.comm.size
        tokens = torch.from_dlpack(x.view("u2")).view(torch.bfloat16) if x.dtype.itemsize == 2 else torch.from_dlpack(x)
        ids = torch.from_dlpack(chosen)
        largest = max(int((each == rank).sum()) for each in ranks for rank in range(size))
        ways = {
            "read": self.read(tokens, ids, setting),
            "known": self.known(tokens, ids, ranks),
            "padded": self.padded(tokens, largest),
            "gathers": self.gathers(tokens, ids),
        }
        row = {}
        for name, (there, back) in ways.items():
            # In "read" the host reads counts, which a graph cannot capture.
            graph = setting.mode == "graph" and name != "read"
            row[f"{name}_dispatch_us"] = self.time_of(there, arguments, graph=graph)
            row[f"{name}_combine_us"] = self.time_of(back, arguments, graph=graph)
        return row

    def read(self, tokens: Any, ids: Any, setting: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return functions for dispatch and combine with counts that the host reads."""
        torch, distributed, size, k = self.torch, self.distributed, self.comm.size, setting.k
        state: dict[str, Any] = {}

        def there() -> None:
            flat = ids.reshape(-1)
            order = torch.argsort(flat, stable=True)
            counts = torch.bincount(flat * size // setting.experts, minlength=size)
            received = torch.empty_like(counts)
            distributed.all_to_all_single(received, counts)
            state["out"], state["in"] = counts.tolist(), received.tolist()
            rows = tokens.new_empty((sum(state["in"]), tokens.shape[1]))
            distributed.all_to_all_single(rows, tokens[order // k], state["in"], state["out"])
            state["rows"], state["order"] = rows, order

        def back() -> None:
            returned = tokens.new_empty((len(tokens) * k, tokens.shape[1]))
            distributed.all_to_all_single(returned, state["rows"], state["out"], state["in"])
            results = torch.empty_like(returned)
            results[state["order"]] = returned
            (results.reshape(len(tokens), k, -1).float() / k).sum(1).to(tokens.dtype)

        return there, back

    def known(self, tokens: Any, ids: Any, ranks: list[Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return functions for dispatch and combine with cached counts and row order.

        Rows are gathered and added up.
        """
        me, size, k = self.comm.rank, self.comm.size, ids.shape[1]
        sent = [int((ranks[me] == rank).sum()) for rank in range(size)]
        arriving = [int((each == me).sum()) for each in ranks]
        order = self.torch.argsort(ids.reshape(-1), stable=True)
        rows = tokens.new_empty((sum(arriving), tokens.shape[1]))
        returned = tokens.new_empty((len(tokens) * k, tokens.shape[1]))
        results, move = self.torch.empty_like(returned), self.distributed.all_to_all_single

        def back() -> None:
            move(returned, rows, sent, arriving)
            results[order] = returned
            (results.reshape(len(tokens), k, -1).float() / k).sum(1).to(tokens.dtype)

        return lambda: move(rows, tokens[order // k], arriving, sent), back

    def padded(self, tokens: Any, largest: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return functions for dispatch and combine in equal blocks of the largest count.

        Sorting and adding are left out of the time, to this program's advantage.
        """
        send = tokens.new_zeros((self.comm.size * max(largest, 1), tokens.shape[1]))
        recv = self.torch.empty_like(send)
        move = self.distributed.all_to_all_single
        return lambda: move(recv, send), lambda: move(send, recv)

    def gathers(self, tokens: Any, ids: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return functions for dispatch by two all-gathers, and combine by an all-to-all.

        Selecting is left out of the time, to this program's advantage.
        """
        distributed, size = self.distributed, self.comm.size
        everything = tokens.new_empty((size * len(tokens), tokens.shape[1]))
        choices = ids.new_empty((size * len(ids), ids.shape[1]))
        returned = self.torch.empty_like(everything)

        def there() -> None:
            distributed.all_gather_into_tensor(choices, ids)
            distributed.all_gather_into_tensor(everything, tokens)

        def back() -> None:
            distributed.all_to_all_single(returned, everything)
            returned.reshape(size, len(tokens), -1).float().sum(0).to(tokens.dtype)

        return there, back

    def time_of(self, operation: Callable[[], Any], arguments: Any, *, graph: bool) -> float:
        """Return the microseconds of one operation, timed like pyncclx's."""
        iters = max(3, int(arguments.iters) // 4)
        return timing.time(self.comm, self.queue, operation, iters, arguments.warmup_iters, graph=graph).slowest
