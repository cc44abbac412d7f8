"""Primitives of JAX that call pyncclx, in the order of the program.

A token orders the calls: it is an argument and a result of each custom call, so XLA cannot exchange two of them, and
JAX passes it on from one compiled program to the next.
"""

from __future__ import annotations

import atexit
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax._src import core, dispatch, effects  # JAX has no public ordered effects
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from .handlers import PLATFORMS, register
from .statics import value_of

__all__ = ["Call", "batch_alike", "define", "define_lowered", "like", "wait_for_programs"]


@dataclass(frozen=True)
class Ordered(effects.Effect):  # type: ignore[misc]  # without JAX it is Any
    """The effect of all calls of this package.

    It is equal in all processes, and so is its hash, because persistent caches of compiled programs compare it.
    """

    def __repr__(self) -> str:
        return "pyncclx"


ORDERED = Ordered()
_failed_without_results: list[bool] = []  # whether the last call that failed has no results
_PATIENCE_S = 5.0  # seconds to wait at exit for calls in progress, after an exception has ended the program
for _kind in ("lowerable", "ordered", "control_flow_allowed", "custom_derivatives_allowed", "remat_allowed"):
    getattr(effects, f"{_kind}_effects").add_type(Ordered)

Rule = Callable[..., Any]  # one of JAX's rules for a primitive, which take its parameters by name


class Call(NamedTuple):
    """One call of a compiled program: arguments, results and parameters.

    Attributes
    ----------
    comm : Intracomm
    ins, outs : list of Buffer
        Memory of XLA. Each buffer's owner is an `MPI.buffer`, which methods of the communicator take as bytes.
    given : dict
        The parameters by name, without the communicator.
    on_gpu : bool
    """

    comm: Any
    ins: list[Buffer]
    outs: list[Buffer]
    given: dict[str, Any]
    on_gpu: bool

    def check_device(self, name: str) -> None:
        """Raise NotSupported if JAX's arrays are not on the device of pyncclx's kernels."""
        if not self.on_gpu and self.comm.device != "host":
            raise NotSupported(f"{name}: JAX's arrays are on the CPU and pyncclx's on the GPU; set PYNCCLX_DEVICE=host")


Run = Callable[[Call], object]  # makes the call of pyncclx


def define(
    name: str, outputs: Rule, run: Run, *, aliases: Mapping[int, int] | None = None, batch: Rule | None = None
) -> Any:
    """Make a primitive that calls pyncclx, and returns a list of results.

    Parameters
    ----------
    name : str
    outputs : callable
        Takes the arguments' types and the parameters by name; returns the results' types.
    run : callable
        Makes the call of pyncclx.
    aliases : mapping, optional
        From an argument's index to the index of the result that has the argument's values at first (XLA's aliasing).
    batch : callable, optional
        The batching rule; it takes the primitive first.
    """
    target = f"pyncclx_{name}"
    register(target, functools.partial(_run, run))
    lower = functools.partial(_lower, target, dict(aliases or {}))
    return define_lowered(name, outputs, lower, is_ordered=True, batch=batch)


def define_lowered(name: str, outputs: Rule, lower: Rule, *, is_ordered: bool, batch: Rule | None = None) -> Any:
    """Make a primitive with a lowering of its own, and with an order or without one."""
    its_effects = {ORDERED} if is_ordered else set()
    primitive = Primitive(f"pyncclx_{name}")
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(dispatch.apply_primitive, primitive))
    primitive.def_effectful_abstract_eval(lambda *avals, **given: (list(outputs(*avals, **given)), its_effects))
    for platform in PLATFORMS:
        # Without its plugin for CUDA, JAX does not know the platform "cuda".
        with suppress(NotImplementedError):
            mlir.register_lowering(primitive, lower, platform=platform)
    if batch is not None:
        batching.primitive_batchers[primitive] = functools.partial(batch, primitive)
    return primitive


def _lower(name: str, aliases: dict[int, int], ctx: Any, *operands: Any, **given: Any) -> list[Any]:
    """Lower a primitive to a custom call between two tokens."""
    token = core.abstract_token
    inner = ctx.replace(avals_in=(*ctx.avals_in, token), avals_out=(*ctx.avals_out, token))
    call = jax.ffi.ffi_lowering(name, has_side_effect=True, operand_output_aliases=aliases)
    numbers = {key: getattr(value, "number", value) for key, value in given.items() if value is not None}
    # One attribute, because the handler reads it in every call.
    description = " ".join(f"{key}={numbers[key]}" for key in sorted(numbers))
    results: list[Any]
    *results, after = call(inner, *operands, ctx.tokens_in.get(ORDERED), call=description)
    ctx.set_tokens_out(mlir.TokenSet({ORDERED: after}))
    return results


@functools.cache
def _parameters_of(description: bytes) -> tuple[Any, dict[str, Any]]:
    """Return the communicator of a call, and its other parameters by name."""
    parts = (part.split("=") for part in description.decode().split())
    given = {key: value_of(key, int(number)) for key, number in parts}
    return (given.pop("comm") if "comm" in given else given["shuffle"].comm), given


def _run(run: Run, ins: list[Buffer], outs: list[Buffer], description: bytes, stream: int | None) -> None:
    """Make the call of a compiled program, on XLA's stream."""
    comm, given = _parameters_of(description)
    if stream is not None and (comm.stream is None or comm.stream.ptr != stream):
        comm.stream = stream
    try:
        run(Call(comm, ins, outs, given, stream is not None))
    except BaseException:
        _failed_without_results[:] = [not outs]
        raise


def _pass_on(tokens: Any, effect: Any, devices: Sequence[Any]) -> Any:
    """Return the token of the last compiled program for the next one.

    JAX's own function waits on the host for the last program, and moves its token to the devices. On one device, XLA
    keeps the order if it gets the token as it is. The token of a program that an exception has ended is dropped,
    because each later program would raise the exception again. If the call has results, their use raises the exception;
    otherwise it is raised here.
    """
    token = tokens.current_tokens.get(effect)
    if effect == ORDERED and type(token) is core.Token and len(devices) == 1:
        array = token._buf
        try:
            if array.is_ready():
                array.block_until_ready()
            if array.devices() == set(devices):
                return token
        except jax.errors.JaxRuntimeError:
            del tokens.current_tokens[effect]
            if any(_failed_without_results):
                _failed_without_results.clear()
                raise
    return _TOKEN_INPUT(tokens, effect, devices)


_TOKEN_INPUT = dispatch.RuntimeTokenSet.get_token_input
dispatch.RuntimeTokenSet.get_token_input = _pass_on


def like(shape: Sequence[int], aval: Any) -> Any:
    """Return the type of an array with another shape, and the elements of `aval`."""
    return ShapedArray(tuple(shape), aval.dtype)


def batch_alike(primitive: Any, args: Sequence[Any], axes: Sequence[Any], **given: Any) -> Any:
    """Batch a primitive that treats each element alike, with the batch at axis 0."""
    pairs = list(zip(args, axes, strict=True))
    size = next(arg.shape[axis] for arg, axis in pairs if axis is not None)
    results = primitive.bind(*[batching.bdim_at_front(arg, axis, size) for arg, axis in pairs], **given)
    return results, [0] * len(results)


def wait_for_programs() -> None:
    """Wait for the end of compiled programs, without raising their exceptions.

    The use of a result, or a later call, raises them.
    """
    with suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()


def _finish() -> None:
    """Wait for compiled programs at exit; after an exception, for a limited time."""
    if hasattr(sys, "last_value") and not hasattr(sys, "ps1") and not _end_soon():
        # Their calls may need later calls of this rank, and JAX would wait for them.
        print("pyncclx.jax: an exception has ended this rank during a call; the job is aborted", file=sys.stderr)
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    wait_for_programs()
    dispatch.runtime_tokens.clear()  # JAX waits for them, too


def _end_soon() -> bool:
    """Return whether the compiled programs that run now end within `_PATIENCE_S`."""
    tokens, end = dispatch.runtime_tokens.current_tokens.values(), time.monotonic() + _PATIENCE_S
    while not (over := all(token._buf.is_ready() for token in tokens)) and time.monotonic() < end:
        time.sleep(0.01)
    return over


atexit.register(_finish)
