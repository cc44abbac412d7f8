"""Make methods that pass calls with plain NumPy arrays directly to mpi4py.

The check adds less than half a microsecond to mpi4py's calls, because it reads only types, and the addresses of a few
arrays. Calls with device arrays pay no extra Python call, because the function that checks also runs them.
"""

from __future__ import annotations

import functools
import inspect
import operator  # noqa: F401
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from mpi_bootstrap.own_errors import own_error  # noqa: F401  used in `_SOURCE`, like the other F401

from .. import events  # noqa: F401
from ..arrays import places, pointers
from ..errors import NotSupported  # noqa: F401
from ..failures.policy import raise_explained  # noqa: F401
from ..messages.base import MessageBase
from ..messages.envelope import SHORT_NBYTES  # noqa: F401
from ..messages.host import receive as host_receive
from ..messages.probe import HOLDING  # noqa: F401
from ..messages.progress import pending_sends  # noqa: F401
from ..messages.progress.pending_sends import going_on, note_buffered  # noqa: F401
from ..recording.facts import records_all
from ..staging.arguments import OPERATIONS, is_nonblocking, is_persistent, parameters
from ..system import settings
from ..system.process import cached

_Method = Callable[..., Any]
_IN_PLACE, ANY_TAG = MPI.IN_PLACE, MPI.ANY_TAG
#: Classes of arguments that may be plain, which means that they are certainly in host memory.
_CLASSES = frozenset((ndarray, MPI.buffer, list, tuple, type(None), type(MPI.IN_PLACE)))


def is_plain(buffer: Any) -> bool:
    """Return whether a buffer argument is certainly in host memory.

    True for NumPy arrays and `MPI.buffer` in host memory, alone or first in a list or tuple, and for None and
    `MPI.IN_PLACE`, which have no memory. The native method examines other objects.
    """
    kind = type(buffer)
    if (kind is list or kind is tuple) and buffer:
        buffer = buffer[0]
        kind = type(buffer)
    if kind is ndarray:
        base = buffer.base
        if base is None or (type(base) is ndarray and base.base is None):
            # NumPy has allocated the memory.
            return True
        return not pointers.is_over_device(buffer)
    if kind is MPI.buffer:
        # If the address is 0, the other buffer decides.
        return bool(buffer.address) and not pointers.is_over_device(buffer)
    return buffer is None or buffer is _IN_PLACE


@cached
def looks_closely() -> bool:
    """Return whether every call must go to the native method, even with plain arrays.

    True on the host device, and if settings ask to compare or record calls with host arrays.
    """
    return places.host_arrays() or settings.CHECK.get() or records_all()


#: The source of all methods. Each has the parameters of mpi4py's method, because `*args` would cost a call with host
#: arrays 0.3 µs.
_SOURCE = """
def made(original, native, family, staged, kinds, default):
    def {name}({parameters}{options}):
        {guard}if {plain} and not events.listeners{and_no_options}:
            {by_mpi}
        if type(self) not in kinds:
            if not issubclass(type(self), family):  # MPI.Comm.Send(comm, ...), where comm is mpi4py's
                return getattr(type(self), "{name}")({arguments}{options})
            kinds.add(type(self))
        try:
            return native({arguments}{options})
        except NotSupported:
            if staged is None or not self.staging{or_options}:  # MPI cannot do what an option asks for
                raise
        return staged({arguments})
    return {name}
"""
_BY_MPI = """try:
                done = original({arguments})
            except MPI.Exception as error:
                raise_explained(self, error, "{name}")
            return {done}"""
_RECEIVE = """status = MPI.Status() if status is None else status
            try:
                original({{arguments}})
            except MPI.Exception as error:
                host_receive.raise_refused(self, error, "{{name}}")
            except BaseException:
                host_receive.examine_interrupted(self, {buffer}, status)
                raise
            try:
                if status.Get_count(MPI.BYTE) >= SHORT_NBYTES:
                    host_receive.examine(self, {buffer}, status)
            except BaseException as error:
                if own_error(error) is None:
                    host_receive.examine_interrupted(self, {buffer}, status)
                raise
            return None"""
#: The source of receives into host arrays. They examine the message, which may be the envelope of a device array. While
#: a probe holds messages, calls go to the native method, which searches those first.
_RECEIVES = {
    "Recv": _RECEIVE.format(buffer="buf"),
    "Irecv": """if buf.nbytes < SHORT_NBYTES:
                done = original(self, buf, source, tag)
                return going_on(done) if pending_sends.OF_PROCESS else done
            return host_receive.ireceive_plain(self, original, buf, source, tag)""",
    "Sendrecv": _RECEIVE.format(buffer="recvbuf"),
}
RECEIVES = (*_RECEIVES, "Isendrecv", "Sendrecv_replace", "Isendrecv_replace")
_ANY_TAG = (*RECEIVES, "Recv_init")  # receives that may use MPI.ANY_TAG
#: These receives must not match the library's own messages; see `messages/partitioned/contacts.py`.
_GUARD = """try:
            if {tag} == ANY_TAG and source not in getattr(self, "guarded", ()):
                guard(self, source)
        except TypeError:  # an array of one element, say
            guard(self, operator.index(source))
        """


def host_first(name: str, native: _Method, family: type = object, staged: _Method | None = None) -> _Method:
    """Return a method that passes plain arrays to mpi4py and other arrays to `native`.

    If mpi4py has no method of this name, return `native` itself.

    Parameters
    ----------
    name : str
    native : callable
        Called for arrays that are not plain. It may raise NotSupported, and may have more keywords than mpi4py's
        method.
    family : type
        The class to which the method is added. Communicators of other classes keep mpi4py's method.
    staged : callable, optional
        Called when `native` raises NotSupported and `staging` is true.
    """
    original: _Method | None = getattr(MPI.Cartcomm, name, None)
    if original is None:
        return native
    known = list(inspect.signature(original).parameters.values())[1:]
    arguments = ["self", *(each.name for each in known)]
    defaults = {each.name: each.default for each in known if each.default is not each.empty}
    takes = inspect.signature(native, follow_wrapped=False).parameters.values()
    has_options = any(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in takes)
    options = (", **options", " and not options", " or options") if has_options else ("", "", "")
    texts = {
        "name": name,
        **dict(zip(("options", "and_no_options", "or_options"), options, strict=True)),
        "arguments": ", ".join(arguments),
        "parameters": ", ".join(f'{each}=default["{each}"]' if each in defaults else each for each in arguments),
        "plain": _plain(name),
        "guard": _GUARD.format(tag="recvtag" if "recvtag" in arguments else "tag") if name in _ANY_TAG else "",
        "done": "going_on(done) if pending_sends.OF_PROCESS else done" if is_nonblocking(name) else "done",
    }
    if name == "Bsend":
        texts["done"] = "note_buffered()"
    namespace: dict[str, Any] = {}
    source = _SOURCE.format(by_mpi=_RECEIVES.get(name, _BY_MPI).format(**texts), **texts)
    exec(compile(source, f"{__file__}:{name}", "exec"), globals(), namespace)
    return functools.wraps(native)(namespace["made"](original, native, family, staged, set(), defaults))


def guard(comm: Any, source: int) -> None:
    """Prepare a receive with MPI.ANY_TAG; see `MessageBase.guard`."""
    if isinstance(comm, MessageBase):
        comm.guard(source)


def _plain(name: str) -> str:
    """Return the source of the condition under which mpi4py handles a call."""
    buffers = [each.name for each in OPERATIONS.get(name, ())]
    if not buffers or is_persistent(name) or (name in RECEIVES and name not in _RECEIVES):
        return "False"
    kinds = "(ndarray,)" if name == "Irecv" else "_CLASSES"
    first = f"type({buffers[-1]}) in {kinds} and not looks_closely()"
    are_plain = [f"((type({each}) is ndarray and {each}.base is None) or is_plain({each}))" for each in buffers]
    return " and ".join([first, *are_plain, *(["not HOLDING"] if name in _RECEIVES else [])])


def receive_by_mpi(comm: Any, name: str, call: _Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Receive through MPI after kernels have raised NotSupported.

    The peer may nevertheless have sent a device array. Then MPI receives an envelope, and this function fetches the
    data.
    """
    arguments = {**dict(zip(parameters(name), args, strict=False)), **kwargs}
    into = next(each.name for each in OPERATIONS[name] if each.written)
    buf = arguments.get(into)
    if is_nonblocking(name):
        return host_receive.ireceive(comm, lambda view: call(**{**arguments, into: view}), buf)
    status = arguments.pop("status", None)

    @functools.wraps(call)
    def receive(status: MPI.Status) -> None:
        call(**arguments, status=status)

    return host_receive.receive(comm, receive, (), buf, status)
