"""Programs in JAX on every rank, against NumPy: prints a line of JSON with what is wrong in each subject.

    mpiexec -n 2 python tests/support/jax_program.py

Each element says of which rank it is: rank q's arrays are `of(q, shape)`.
"""

import json
import re
import sys
import traceback
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
import pyncclx.jax as pj

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
SHAPES = ((), (0,), (1,), (3, 0, 2), (17,), (5, 33), (9001,))
KINDS = ("bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64")
MOVES = {
    "allgather": lambda x, root: pj.allgather(x),
    "alltoall": lambda x, root: pj.alltoall(jnp.stack([x + np.array(r).astype(x.dtype) for r in range(SIZE)])),
    "bcast": pj.bcast,
    "gather": pj.gather,
    "scatter": lambda x, root: pj.scatter(jnp.stack([x, *[x + x] * (SIZE - 1)]) if root == RANK else x, root),
    "sendrecv": lambda x, root: pj.sendrecv(x, jnp.zeros_like(x), LEFT, RIGHT),
}
SUBJECTS = {}


def subject(function):
    """Add a subject: a function that asserts."""
    SUBJECTS[function.__name__] = function
    return function


def of(rank, shape, kind="float32"):
    """The array of a rank: small numbers, which every type has."""
    numbers = (np.arange(np.prod(shape, dtype=int)).reshape(shape) + 3 * rank) % 11
    return (numbers % 3 == 1) if kind == "bool" else numbers.astype(jnp.dtype(kind))


def same(found, expected):
    """Assert that two arrays are equal, shapes included, and say where they are not."""
    found = np.asarray(found)
    assert found.shape == np.shape(expected), (found.shape, np.shape(expected))
    np.testing.assert_array_equal(found.astype("c16"), np.asarray(expected).astype("c16"))


def moved(name, root, shape, kind):
    """What a rank gets, by NumPy."""
    every, own = [of(q, shape, kind) for q in range(SIZE)], of(RANK, shape, kind)
    return {
        "allgather": lambda: np.stack(every),
        "alltoall": lambda: np.stack([each + np.array(RANK).astype(own.dtype) for each in every]),
        "bcast": lambda: every[root],
        "gather": lambda: np.stack(every) if root == RANK else own,
        "scatter": lambda: every[root] if RANK == 0 else every[root] + every[root],
        "sendrecv": lambda: every[LEFT],
    }[name]()


@subject
def moves():
    for place, (name, function) in enumerate(MOVES.items()):
        for number in range(place % 3, len(SHAPES), 3):  # compiling takes long
            shape, kind, root = SHAPES[number], KINDS[(place + number) % len(KINDS)], number % SIZE
            found = jax.jit(function, static_argnums=1)(jnp.asarray(of(RANK, shape, kind)), root)
            assert found.dtype == jnp.dtype(kind), (name, kind)
            same(found, moved(name, root, shape, kind))


@subject
def reductions():
    for number, shape in enumerate(SHAPES):
        kind, root = KINDS[number % len(KINDS)], (number + 1) % SIZE
        op, fold = (MPI.LOR, np.logical_or.reduce) if kind == "bool" else (MPI.SUM, np.add.reduce)
        every = np.stack([of(q, shape, kind) for q in range(SIZE)])
        x = jnp.asarray(every[RANK])
        same(jax.jit(lambda x, op=op: pj.allreduce(x, op))(x), fold(every))
        if number % 3 == 0:
            same(pj.scan(x, op), fold(every[: RANK + 1]))
        if number % 3 == 1:
            same(pj.reduce(x, op, root), fold(every) if root == RANK else every[RANK])


@subject
def operators():
    larger = pyncclx.Op(lambda a, b: a if a > b else b)
    x = jnp.asarray(of(RANK, 17))
    for op in (larger, MPI.Op.Create(larger_in_memory, commute=True), MPI.MAX):
        same(jax.jit(lambda x, op=op: pj.allreduce(x, op))(x), np.max([of(q, 17) for q in range(SIZE)], 0))
    same(pj.allreduce(jnp.full(3, 4.0 * RANK), pyncclx.AVG), np.full(3, 2.0 * (SIZE - 1)))


def larger_in_memory(source, into, _):
    """The operator of a program that reduces by MPI."""
    result = np.frombuffer(into, "f4")
    np.maximum(result, np.frombuffer(source, "f4"), out=result)


@subject
def messages():
    send = jax.jit(lambda x: [pj.send(x + k, RIGHT, tag=k) for k in range(4)] and None)
    receive = jax.jit(lambda x: [pj.recv(x, LEFT, tag=k) for k in (3, 1, 0, 2)])
    send(jnp.full(5, 10.0 * RANK))
    same([each[4] for each in receive(jnp.zeros(5))], 10.0 * LEFT + np.array([3, 1, 0, 2]))

    status, template = MPI.Status(), jnp.full(7, -1.0)
    pj.send(jnp.asarray(of(RANK, 5)), RIGHT, tag=8)
    found = jax.jit(lambda x: (pj.recv(x, status=status), x))(template)
    same(found[0], [*of(LEFT, 5), -1, -1])
    same(found[1], template)
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.FLOAT)) == (LEFT, 8, 5)

    same(pj.sendrecv(template + 1, template, MPI.PROC_NULL, MPI.PROC_NULL), template)
    pj.send(jnp.zeros(0), RIGHT)
    assert pj.recv(jnp.zeros(0), LEFT).shape == (0,)


@subject
def order():
    """Nothing but the order of the program says which call comes first."""
    send, receive = jax.jit(lambda x: pj.send(x, RIGHT)), jax.jit(lambda x: pj.recv(x, LEFT))
    total = jax.jit(lambda x: pj.allreduce(x, MPI.SUM))
    nested = jax.jit(lambda x: total(jax.jit(pj.barrier)() or x))
    for k in range(10):
        send(jnp.full(3, 100 * RANK + k))
        same(nested(jnp.full(2, k)), np.full(2, SIZE * k))
        same(receive(jnp.zeros(3, int)), np.full(3, 100 * LEFT + k))

    def step(carry, k):
        carry = jax.lax.cond(k % 2 == RANK % 2, total, lambda x: total(x * 1), carry)
        return carry, pj.bcast(carry[0] + RANK, 0)

    carry, firsts = jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(4)))(jnp.arange(1, 4))
    same(carry, np.arange(1, 4) * SIZE**4)
    same(firsts, SIZE ** np.arange(1, 5))
    powers = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0] < 50, lambda x: total(x) + 1, x))(jnp.arange(2))
    expected = np.arange(2)
    while expected[0] < 50:
        expected = expected * SIZE + 1
    same(powers, expected)


@subject
def gradients():
    """Transposes as in mpi4jax: the identity for a sum, the other way for an exchange."""
    x, weight = jnp.arange(5.0) + RANK, np.arange(5.0) * (RANK + 1)
    total, both = lambda x: pj.allreduce(x, MPI.SUM), SIZE * np.arange(5.0) + SIZE * (SIZE - 1) / 2

    def ring(x):
        return pj.sendrecv(x, jnp.zeros_like(x), LEFT, RIGHT)

    def line(x, y):
        up, down = (RANK + 1 if RANK + 1 < SIZE else MPI.PROC_NULL), (RANK - 1 if RANK else MPI.PROC_NULL)
        return (pj.sendrecv(x, y, down, up) * weight).sum()

    same(jax.jit(jax.grad(lambda x: (total(x) ** 2).sum()))(x), 2 * both)
    same(jax.jvp(total, (x,), (x,))[1], both)
    same(jax.hessian(lambda x: (total(x) ** 2).sum())(x), 2 * SIZE * np.eye(5))
    once = jax.linear_transpose(total, x)
    same(once(x)[0], x)
    same(jax.linear_transpose(lambda y: once(y)[0], x)(x)[0], both)
    same(jax.grad(lambda x: (ring(x) * weight).sum())(x), np.arange(5.0) * (RIGHT + 1))
    twice = jax.checkpoint(lambda x, _: (ring(ring(x)), None))
    same(
        jax.jit(jax.grad(lambda x: (jax.lax.scan(twice, x, None, 2)[0] * weight).sum()))(x),
        np.arange(5.0) * ((RANK + 4) % SIZE + 1),
    )
    tagged = partial(pj.sendrecv, recvbuf=jnp.zeros_like(x), sendtag=RANK, recvtag=LEFT)
    same(jax.grad(lambda x: (tagged(x, source=LEFT, dest=RIGHT) * weight).sum())(x), np.arange(5.0) * (RIGHT + 1))
    anyone = partial(pj.sendrecv, recvbuf=jnp.zeros_like(x), source=MPI.ANY_SOURCE, dest=RIGHT)
    raises(ValueError, lambda: jax.grad(lambda x: anyone(x).sum())(x), "cannot differentiate")
    sent, received = jax.grad(line, (0, 1))(x, x)
    same(sent, np.arange(5.0) * (RANK + 2) * (RANK + 1 < SIZE))
    same(received, weight * (RANK == 0))
    raises(RuntimeError, lambda: jax.jacfwd(ring)(x), "JAX differentiates it")
    raises(NotImplementedError, lambda: jax.grad(lambda x: pj.allreduce(x, MPI.MAX)[0])(x), "JAX differentiates it")


def raises(kind, function, text):
    """Assert that a function raises an exception of a kind with a text."""
    with pytest.raises(kind, match=re.escape(text)):
        function()


def main():
    """Run the subjects, or those that the command line names."""
    import jax_shuffles  # noqa: F401, PLC0415  it adds to SUBJECTS
    import jax_subjects  # noqa: F401, PLC0415

    for name in sys.argv[1:] or SUBJECTS:
        try:
            SUBJECTS[name]()
            wrong = ""
        except Exception:
            wrong = traceback.format_exc()
        print(json.dumps({"rank": RANK, "subject": name, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    sys.modules["jax_program"] = sys.modules["__main__"]
    main()
