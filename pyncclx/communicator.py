"""Communicators: mpi4py's, with device arrays moved by GPU kernels."""

from __future__ import annotations

import math
import os
from typing import Any, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from . import devices
from .buffers import where
from .collectives import MODULES
from .collectives.allgather import allgather
from .collectives.allreduce import allreduce
from .collectives.alltoall import alltoall
from .collectives.alltoallv import alltoallv, alltoallv_dynamic
from .collectives.barrier import barrier
from .collectives.bcast import bcast
from .collectives.reduce import reduce
from .collectives.reduce_scatter_block import reduce_scatter_block
from .errors import NotSupported
from .heap import memory_held
from .team import Team

_BLOCKING = ("stream", "host")


class State:
    """What a communicator carries; every object with the same handle sees it, through an MPI attribute."""

    def __init__(self) -> None:
        self.blocking = os.environ.get("PYNCCLX_BLOCKING", "stream")
        self.team: Team | None = None

    def close(self) -> None:
        """Release what the communicator holds on the device."""
        team, self.team = self.team, None
        if team is not None:
            team.device.synchronize()
            team.close()


def _close_state(comm: MPI.Comm, keyval: int, state: State) -> None:
    state.close()


# Made at the first use: creating a keyval needs MPI to be initialised, and nothing happens at import.
_keyval = MPI.KEYVAL_INVALID


def _state_of(comm: MPI.Comm) -> State:
    global _keyval
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_close_state)
    state: Any = comm.Get_attr(_keyval)
    if state is None:
        state = State()
        comm.Set_attr(_keyval, state)
    return cast(State, state)


class Intracomm(MPI.Intracomm):
    """An `mpi4py.MPI.Intracomm` whose collectives also take device arrays.

    Calls with host arrays are mpi4py's own. Calls with device arrays (CuPy, Numba, PyTorch, JAX, anything with
    DLPack or `__cuda_array_interface__`) launch one GPU kernel on the current stream and return; the result is
    there for whatever that stream does next.

    Making one costs nothing: memory is allocated and kernels are compiled at the first operation on device
    arrays, which is collective over the communicator even for operations that need not be.

    Raises
    ------
    TypeError, ValueError, BufferError, KeyError, MPI.Exception
        From every operation, for what mpi4py would not accept either, before anything is launched.
    NotSupported
        From every operation: host and device arrays in one call, ranks on several nodes.
    PeerTimeout, Aborted
        From the first call after a kernel has given up waiting, and from all later ones.
    """

    # State

    @property
    def team(self) -> Team:
        """The device side of this communicator, made at the first use. Collective then."""
        state = _state_of(self)
        if state.team is None:
            mpi_bootstrap.check_launch(self)
            state.team = Team(self, devices.select())
        else:
            state.team.check()
        return state.team

    @property
    def blocking(self) -> str:
        """When a call on device arrays returns: "stream" (at once, default) or "host" (when the result is there).

        The environment variable PYNCCLX_BLOCKING sets what new communicators begin with.
        """
        return _state_of(self).blocking

    @blocking.setter
    def blocking(self, value: str) -> None:
        if value not in _BLOCKING:
            raise ValueError(f"blocking is {value!r}; it can be 'stream' or 'host'")
        _state_of(self).blocking = value

    @property
    def device(self) -> str:
        """Where operations on device arrays run: "gpu", or "host" under PYNCCLX_DEVICE=host."""
        return devices.select().name

    def select_device(self) -> int:
        """Make the GPU with this rank's local rank current and return its number; call it before the first array.

        On the host device there is nothing to choose; it returns 0. Collective.
        """
        return devices.make_current(mpi_bootstrap.topology(self).local_rank)

    def synchronize(self) -> None:
        """Wait on the host until every operation on device arrays so far is over, and raise what went wrong in them."""
        team = _state_of(self).team
        if team is not None:
            team.drain()

    def memory_report(self) -> dict[str, int]:
        """Bytes of device memory that this process holds for communication, by holder.

        Returns
        -------
        dict
            "heap": the symmetric heap, shared by all communicators of the process; "leased": its leased part;
            "this communicator": its lease; "windows": what `Alloc` has given. All 0 before the first operation on
            device arrays.
        """
        team = _state_of(self).team
        windows = sum(window.memory.nbytes for window in team.windows) if team else 0
        return memory_held() | {"this communicator": team.lease.nbytes if team else 0, "windows": windows}

    def Alloc(self, shape: int | tuple[int, ...], dtype: Any = "f4") -> Any:
        """Allocate an array that every rank has mapped: operations on it move data without a copy on the way.

        What matters is where an operation writes, and for reductions where it reads, too; any part of the array will
        do. Large messages gain, small ones are as fast elsewhere. Collective; shapes may differ between ranks.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : NumPy dtype, default float32

        Returns
        -------
        array
            CuPy's, zeroed; NumPy's on the host device. The memory lives as long as the array or a view of it; after
            `Free` it is an ordinary array.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        team = self.team
        return team.device.array(team.add_window(self, nbytes).memory, shape, dtype)

    def explain(self, operation: str, nbytes: int = 0) -> str:
        """Say in a sentence how an operation on device arrays would run. Collective at the first use.

        Parameters
        ----------
        operation : str
            Name of the method, such as "Allreduce".
        nbytes : int
            Of the message; for Allgather, Alltoall and Reduce_scatter_block of one rank's block.
        """
        if operation not in MODULES:
            raise ValueError(f"operation is {operation!r}; it can be {', '.join(MODULES)}")
        team = self.team
        choice = MODULES[operation].choose(team.layout, nbytes)
        place = "the host device" if team.device.name == "host" else f"GPUs ({team.device.architecture})"
        how = f"kernel {choice.kernel} on {choice.grid} channels; {choice.why}"
        return f"{operation} of {nbytes} bytes among {team.size} ranks on {place}: {how}"

    # Communicators

    def _ours(self, comm: MPI.Comm) -> Intracomm:
        """A new communicator as one of ours; it begins with this one's choice of blocking."""
        if comm == MPI.COMM_NULL:
            return cast(Intracomm, comm)
        ours = Intracomm(comm)
        ours.blocking = self.blocking
        return ours

    def Dup(self, info: MPI.Info | None = None) -> Intracomm:
        return self._ours(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Intracomm:
        return self._ours(super().Dup_with_info(info))

    def Idup(self, info: MPI.Info | None = None) -> tuple[Intracomm, MPI.Request]:
        comm, request = super().Idup(info)
        return Intracomm(comm), request

    def Clone(self) -> Intracomm:
        return self._ours(super().Clone())

    def Create(self, group: MPI.Group) -> Intracomm:
        return self._ours(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Intracomm:
        return self._ours(super().Create_group(group, tag))

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        return self._ours(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Intracomm:
        return self._ours(super().Split_type(split_type, key, info))

    def Free(self) -> None:
        """Release the communicator, and the device memory it holds. Collective.

        MPI.COMM_WORLD and MPI.COMM_SELF, which cannot be freed, give the memory back and stay usable.
        """
        self._leave()
        if self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            super().Free()

    def Disconnect(self) -> None:
        """As `Free`, once pending communication is over. Collective."""
        self._leave()
        super().Disconnect()

    def _leave(self) -> None:
        """Nobody's kernels may still write to a lease that somebody gives back: drain, then meet."""
        state = _state_of(self)
        if state.team is not None:
            state.team.device.synchronize()
            MPI.Comm.Barrier(self)
            state.close()

    def __enter__(self) -> Intracomm:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Freeing waits for all ranks. One that raises must not: the others may never come here.
        if kind is None:
            self.Free()

    # Operations

    def Barrier(self, *, device: bool = False) -> None:
        """Synchronise the ranks: on the host as MPI does, or with `device=True` the ranks' current streams."""
        if device:
            barrier(self)
        else:
            super().Barrier()

    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None) -> None:
        """Give every rank root's data.

        Parameters
        ----------
        buf : array or buffer spec, any datatype, as many bytes on every rank
        root : int
        algorithm : {"direct", "two_shot"}, optional
            By length if left out.
        """
        if on_host(buf):
            return super().Bcast(buf, root)
        return bcast(self, buf, root, algorithm)

    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0, *, algorithm: str | None = None
    ) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order, into root's recvbuf.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE at root reads recvbuf
        recvbuf : the same at root; not used elsewhere
        op : MPI.Op or pyncclx.AVG
        root : int
        algorithm : {"one_shot", "two_shot"}, optional
            By length if left out. The result has the same bits in both.
        """
        if on_host(sendbuf, recvbuf if self.rank == root or where(sendbuf) is None else None):
            return super().Reduce(sendbuf, recvbuf, op, root)
        return reduce(self, sendbuf, recvbuf, op, root, algorithm)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order, into every rank's recvbuf.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE reads recvbuf
        recvbuf : array or buffer spec, same count and datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot_packets", "two_shot"}, optional
            By length if left out. The result has the same bits in all, on all ranks and in every run.
        """
        if on_host(sendbuf, recvbuf):
            return super().Allreduce(sendbuf, recvbuf, op)
        return allreduce(self, sendbuf, recvbuf, op, algorithm)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
    ) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order; rank r gets block r of the result.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,); MPI.IN_PLACE reads recvbuf, then of that shape
        recvbuf : array or buffer spec, shape (count,), same datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot"}, optional
            By length if left out. The result has the same bits in both.
        """
        if on_host(sendbuf, recvbuf):
            return super().Reduce_scatter_block(sendbuf, recvbuf, op)
        return reduce_scatter_block(self, sendbuf, recvbuf, op, algorithm)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give every rank all ranks' data, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,), any datatype; MPI.IN_PLACE reads this rank's block of recvbuf
        recvbuf : array or buffer spec, shape (size * count,)
        """
        if on_host(sendbuf, recvbuf):
            return super().Allgather(sendbuf, recvbuf)
        return allgather(self, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send block r of sendbuf to rank r; block s of recvbuf comes from rank s.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,), any datatype; MPI.IN_PLACE replaces recvbuf
        recvbuf : array or buffer spec, shape (size * count,)
        """
        if on_host(sendbuf, recvbuf):
            return super().Alltoall(sendbuf, recvbuf)
        return alltoall(self, sendbuf, recvbuf)

    def Alltoallv(
        self, sendbuf: Any, recvbuf: Any, *, layout: str | None = None, total: Any = None, status: Any = None
    ) -> None:
        """Send each rank some rows; as MPI's when the counts are on the host, dynamic when they are on the device.

        MPI's form takes ``[array, counts]``, ``[array, (counts, displs)]`` and so on, in elements.

        The dynamic form reads counts when the kernel runs, and tells the receivers what they got:
        ``comm.Alltoallv([sendbuf, counts], [recvbuf, recv_counts])``. It is meant when counts are device arrays, or
        `layout` is given (on the host device, where NumPy arrays could be either, give it). Collective: a rank
        with nothing to send takes part all the same.

        Parameters
        ----------
        sendbuf : ``[array, counts]`` or ``[array, (counts, displs)]``
            A row is what one index of the array's first dimension holds. counts and displs: device arrays, shape
            (size,), int64, in rows; without displs the rows for rank 0, 1, … follow each other.
        recvbuf : array, ``[array, counts]`` or ``[array, (counts, displs)]``
            Its rows are the capacity; nothing is written past it, and the rows that do not fit are dropped. counts
            and displs are outputs: how many rows of each rank were stored, and where they begin.
        layout : {"packed", "slots"}, default "packed"
            "packed": the ranks' rows follow each other. "slots": recvbuf has the shape (size, capacity, …), and
            the rows of rank s begin at recvbuf[s].
        total : device array, shape (1,), int64, optional
            Output: how many rows were stored.
        status : device array, shape (size,), int64, optional
            Output: how many rows of each rank were dropped. Whoever passes it looks after it; without it
            the next call on this communicator raises CapacityExceeded.
        """
        if layout is not None or total is not None or status is not None or counts_on_device(sendbuf):
            return alltoallv_dynamic(self, sendbuf, recvbuf, layout or "packed", total, status)
        if on_host(sendbuf, recvbuf):
            return super().Alltoallv(sendbuf, recvbuf)
        return alltoallv(self, sendbuf, recvbuf)


def Communicator(comm: MPI.Comm | None = None) -> Intracomm:
    """Make an mpi4py communicator one of ours: same handle, same group, and device arrays welcome.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, default MPI.COMM_WORLD

    Raises
    ------
    NotSupported
        For intercommunicators and communicators with a topology; Dup or Merge them first.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"Communicator: comm is {comm!r}; expecting an mpi4py communicator")
    if not isinstance(comm, MPI.Intracomm):
        raise NotSupported("Communicator: intercommunicators do not take device arrays; Merge it")
    return Intracomm(comm)


def on_host(*buffers: Any) -> bool:
    """Whether a call is mpi4py's: none of its buffers is a device array. If some are, `resolve` refuses the others."""
    return "device" not in map(where, buffers)


def counts_on_device(spec: Any) -> bool:
    """Whether a buffer spec's counts are a device array of some library; a NumPy array never is."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2 or isinstance(spec[1], (str, MPI.Datatype)):
        return False
    counts = spec[1][0] if isinstance(spec[1], tuple) and spec[1] else spec[1]
    return hasattr(counts, "__cuda_array_interface__") or (
        not hasattr(counts, "__array_interface__") and where(counts) == "device"
    )
