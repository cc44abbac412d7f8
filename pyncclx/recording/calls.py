"""Write the entries of a communicator or window, numbered equally on all ranks."""

from __future__ import annotations

import itertools
import operator
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from ..system.process import BoundedCache
from . import layout
from .facts import Identity, calling_site
from .layout import FACTS, Facts, Live
from .ring import RING, Ring, now

#: Writers of communicators and windows that are in use.
CALLS: weakref.WeakSet[Calls] = weakref.WeakSet()


class Calls:
    """Writer of the entries of a communicator's calls.

    Attributes
    ----------
    ring : Ring
    reference : int
        Reference of the communicator in entries.
    numbers : iterator
        Iterator over the numbers of collective calls.
    skipped : int
        Number of collective calls that launched no kernel on the communicator's channels. All other calls advance the
        epoch by one.
    """

    def __init__(self, ring: Ring, identity: Identity, name: str, rank: int) -> None:
        self.ring, self.identity = ring, identity
        self.reference = ring.passing_text(identity.text(name, rank))
        self.numbers = itertools.count(1)
        self.skipped = 0
        CALLS.add(self)
        self._kept: BoundedCache[Hashable, bytes] = BoundedCache()  # facts of messages

    @property
    def last(self) -> int:
        """Number of the last collective call.

        Only the iterator's `repr` shows its next number.
        """
        return int(repr(self.numbers).removeprefix("count(").removesuffix(")")) - 1

    def close(self) -> None:
        """Note that the communicator has ended.

        The place of the communicator's text is reused after its entries have been overwritten.
        """
        CALLS.discard(self)
        self.ring.release(self.reference)

    # Methods for collective calls.

    def begin(self, operation: str, kind: int = layout.COLLECTIVE, flags: int = 0) -> Begun:
        """Write the entry of a call that begins; `Begun.describe` gives it a number."""
        text = self.ring.text
        facts = Facts(text(operation), self.reference, site=text(calling_site()), kind=kind, flags=flags)
        return Begun(self, self.ring, self.ring.add(0, facts), facts)

    def repeated(self, facts: Facts, *, beside: bool = False) -> Callable[[], None]:
        """Return a function that writes an entry, for each repetition of a cached call.

        `beside` says that the call's kernel uses none of the communicator's channels.
        """
        write = self.ring.writer(_packed_again(facts), self.numbers)

        def write_beside() -> None:
            self.skipped += 1
            write()

        return write_beside if beside else write

    def again(self, facts: bytes) -> int:
        """Write the entry of a repeated call without a kernel; return its number.

        The call runs by steps, or in MPI. `Begun.packed_again` returns the facts.
        """
        self.skipped += 1
        return self.ring.add_packed(next(self.numbers), facts)

    def on_host(self, operation: str) -> None:
        """Write the entry of a call without arrays that MPI runs.

        All calls of one operation share the program line of the first one.
        """
        facts = self._kept.get(operation)
        if facts is None:
            begun = self.begin(operation)
            begun.of_host_arrays(operation)
            self._kept[operation] = begun.packed_again()
        else:
            self.again(facts)

    @contextmanager
    def meeting(self, operation: str) -> Iterator[None]:
        """Write the entry of a call with a rendezvous on the host, and its end."""
        begun = self.begin(operation)
        begun.describe(operation=operation, signature=())
        begun.not_launched(layout.MEETING)
        with self.waiting(operation):
            yield
        begun.end()

    # Methods for calls that are not collective.

    def one(self, operation: str, kind: int, *, peer: Any, tag: Any = layout.ANY, nbytes: int = 0) -> int:
        """Write the entry of a message or one-sided operation; return its sequence number.

        The arguments are not checked yet, so they may be invalid.
        """
        return self.ring.add_packed(0, self.facts_of_one(operation, kind, peer=peer, tag=tag, nbytes=nbytes))

    def facts_of_one(
        self, operation: str, kind: int, *, peer: Any, tag: Any = layout.ANY, nbytes: int = 0, datatype: str = ""
    ) -> bytes:
        """Return the packed facts of a message or one-sided operation.

        Equal operations share the program line of the first one.
        """
        if type(peer) is not int or type(tag) is not int:
            peer, tag = _whole(peer), _whole(tag)
        key = operation, peer, tag, nbytes, datatype
        facts = self._kept.get(key)
        if facts is None:
            text, peer, tag = self.ring.text, self.world_rank(_whole(peer)), _whole(tag)
            values = Facts(text(operation), self.reference, datatype=text(datatype), site=text(calling_site()))
            values = values._replace(nbytes=nbytes, peer=peer, tag=tag, kind=kind)
            facts = self._kept[key] = FACTS.pack(*values)
        return facts

    def end(self, sequence: int) -> None:
        """Record the end of an entry's operation."""
        self.ring.end(sequence)

    def match(self, sequence: int, peer: int, tag: int) -> None:
        """Record which message a receive with wildcards has matched."""
        self.ring.match(sequence, self.world_rank(peer), tag)

    def world_rank(self, peer: int) -> int:
        """Return a peer's rank in MPI.COMM_WORLD; the peer may be a wildcard."""
        ranks = self.identity.remote or self.identity.world
        return ranks[peer] if 0 <= peer < len(ranks) else layout.ANY

    # Methods that record what the process waits for.

    @contextmanager
    def waiting(self, what: str, detail: str = "") -> Iterator[None]:
        """Record that the process waits on the host while the `with` block runs."""
        before = self.ring.shown()
        self.ring.live(Live(now(), self.ring.text(what), self.reference, self.ring.text(detail)))
        try:
            yield
        finally:
            self.ring.live(before)


def _whole(value: Any) -> int:
    """Return a rank or tag that fits an entry; ANY for other values."""
    try:
        number = operator.index(value)
    except TypeError:
        return layout.ANY
    return number if abs(number) < 1 << 31 else layout.ANY


def _packed_again(facts: Facts) -> bytes:
    return FACTS.pack(*facts._replace(flags=facts.flags | layout.REPEATED))


class Begun:
    """Entry of a call that has begun."""

    def __init__(self, calls: Calls, ring: Ring, sequence: int, facts: Facts) -> None:
        self._calls, self._ring, self.sequence, self._facts = calls, ring, sequence, facts
        self.operation = ""

    def describe(
        self,
        *,
        operation: str,
        signature: tuple[Any, ...],
        count: int = 0,
        nbytes: int = 0,
        datatype: str = "",
        reduction: str = "",
        root: int | None = None,
    ) -> None:
        """Number the entry, and write the arguments of the call."""
        text, facts, self.operation = self._ring.text, self._facts, operation
        rooted = {} if root is None else {"peer": self._calls.world_rank(root), "flags": facts.flags | layout.ROOTED}
        self._ring.number(self.sequence, next(self._calls.numbers))
        self._change(
            operation=text(operation),
            elements=count,
            nbytes=nbytes,
            datatype=text(datatype),
            operator=text(reduction),
            signature=zlib.crc32(repr(signature).encode()),
            **rooted,
        )

    def launched(self, kernel: str, stream: int, *, beside: bool = False) -> Callable[[], None]:
        """Record that the call has launched a kernel on a stream.

        Return a function to call at each repetition, which writes an entry. Set `beside` if the kernel uses none of the
        communicator's channels. The channels do not count such a call.
        """
        calls = self._calls
        calls.skipped += beside
        self._change(algorithm=self._ring.text(kernel), stream=stream)
        return calls.repeated(self._facts, beside=beside)

    def not_launched(self, kind: int = layout.HOST) -> None:
        """Record that no kernel is launched, because MPI runs the call or it is empty."""
        self._calls.skipped += 1
        self._change(kind=kind)

    def prepared(self, kernel: str, *, beside: bool = False) -> Callable[[], None]:
        """Record that an `_init` call has prepared a persistent request.

        Return a function that writes an entry; call it at each start. Set `beside` as in `launched`.
        """
        started = self._facts._replace(algorithm=self._ring.text(kernel), flags=self._facts.flags | layout.PERSISTENT)
        self._change(operation=self._ring.text(f"{self.operation}_init"), kind=layout.MEETING)
        self._calls.skipped += 1
        self.end()
        return self._calls.repeated(started, beside=beside)

    def refused(self) -> None:
        """Record that the call has ended by raising an exception."""
        # Only a described call has a number.
        if self.operation:
            self.not_launched()
        self.end()

    def of_host_arrays(self, operation: str) -> None:
        """Record that MPI runs the call."""
        self.describe(operation=operation, signature=("host arrays",))
        self.not_launched()

    def by_steps(self) -> bytes:
        """Record that the call ran as steps in and between nodes, and has ended.

        Return the packed facts for later equal calls.
        """
        self.not_launched(layout.COLLECTIVE)
        self.end()
        return self.packed_again()

    def packed_again(self) -> bytes:
        """Return the packed facts for the entry of a later equal call."""
        return _packed_again(self._facts)

    def end(self) -> None:
        """Record the end of the call."""
        self._ring.end(self.sequence)

    def _change(self, **facts: Any) -> None:
        self._facts = self._facts._replace(**facts)
        self._ring.rewrite(self.sequence, self._facts)


def calls_of(identity: Identity, name: str, rank: int) -> Calls | None:
    """Return the writer for a communicator or window; None if nothing is recorded."""
    ring = RING.get()
    return None if ring is None else Calls(ring, identity, name, rank)
