"""More subjects of jax_program.py: batches, errors, communicators, dynamic exchanges."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax_program import LEFT, RANK, RIGHT, SIZE, WORLD, of, raises, same, subject
from mpi4py import MPI

import pyncclx
import pyncclx.jax as pj


@subject
def batches():
    every = np.stack([of(q, (3, 4)) for q in range(SIZE)])
    x, total = jnp.asarray(every[RANK]), lambda x: pj.allreduce(x, MPI.SUM)
    same(jax.jit(jax.vmap(total, 1, 1))(x), every.sum(0))
    same(jax.vmap(pj.allgather, in_axes=1)(x), every.transpose(2, 0, 1))
    same(jax.vmap(lambda x: pj.sendrecv(x, jnp.zeros(4), LEFT, RIGHT))(x), every[LEFT])
    same(jax.vmap(lambda x: pj.scan(x, MPI.SUM))(x), every[: RANK + 1].sum(0))
    same(jax.vmap(jax.grad(lambda x: (total(x) ** 2).sum()))(x), 2 * every.sum(0))
    parts = np.stack([of(q, (2, SIZE, 3)) for q in range(SIZE)])
    same(jax.vmap(pj.alltoall)(jnp.asarray(parts[RANK])), parts[:, :, RANK].swapaxes(0, 1))


@subject
def donated():
    step = jax.jit(lambda x: pj.sendrecv(x, x, LEFT, RIGHT), donate_argnums=0)
    x = jnp.full(513, RANK)
    for _ in range(6):
        x = step(x)
    same(x, np.full(513, (RANK - 6) % SIZE))
    constant = np.arange(6.0)
    same(jax.jit(lambda: pj.sendrecv(constant, constant, LEFT, RIGHT))(), np.arange(6.0))
    same(constant, np.arange(6.0))


@subject
def errors():
    """Wrong arguments raise while JAX traces; others end the compiled program with their text."""
    x = jnp.ones(3)
    raises(TypeError, lambda: pj.allreduce(x, 3), "op is 3")
    raises(TypeError, lambda: pj.allgather(x, comm=3), "comm is 3")
    raises(TypeError, lambda: jax.jit(pj.bcast)(x, 0), "")
    raises(MPI.Exception, lambda: pj.bcast(x, SIZE), f"root is {SIZE}")
    raises(MPI.Exception, lambda: pj.send(x, -9), "dest is -9")
    raises(MPI.Exception, lambda: pj.recv(x, 0, tag=-9), "tag is -9")
    raises(MPI.Exception, lambda: pj.allreduce(x > 0, MPI.SUM), "not defined on bool")
    raises(ValueError, lambda: pj.alltoall(jnp.ones(SIZE + 1)), "must have shape")
    raises(ValueError, lambda: pj.alltoallv(x, jnp.ones(SIZE + 1, int), 3), "counts")
    short = jax.jit(lambda x: pj.sendrecv(x, x[:1], LEFT, RIGHT))
    raises(jax.errors.JaxRuntimeError, lambda: short(x).block_until_ready(), "room for 4")
    same(pj.allreduce(x, MPI.SUM), np.full(3, SIZE))
    route = jax.jit(lambda counts: pj.alltoallv(x, counts, 3)[1])
    negative = jnp.zeros(SIZE, int).at[RANK].set(-1)
    routed = lambda: [route(negative).block_until_ready() for _ in range(2)]  # noqa: E731  a later call raises
    raises(jax.errors.JaxRuntimeError, routed, f"count -1 for rank {RANK}")
    same(pj.allreduce(x, MPI.SUM), np.full(3, SIZE))
    no_tag = jax.jit(lambda x: pj.send(x, RIGHT, tag=1 << 40))
    raises(jax.errors.JaxRuntimeError, lambda: (no_tag(x), pj.allreduce(x, MPI.SUM)), "tag is")
    same(pj.allreduce(x, MPI.SUM), np.full(3, SIZE))


@subject
def communicators():
    half, turned = WORLD.Split(RANK % 2, -RANK), WORLD.Split(0, -RANK)

    def calls(x):
        return pj.allreduce(x, MPI.SUM, comm=half), pj.allgather(x, comm=turned), pj.scan(x, MPI.MAX)

    found = jax.jit(calls)(jnp.asarray(RANK))
    same(found[0], sum(range(RANK % 2, SIZE, 2)))
    same(found[1], np.arange(SIZE)[::-1])
    same(found[2], RANK)
    for k in range(3):  # MPI may use a handle again
        part = WORLD.Split(RANK if k == 1 else 0, RANK)
        same(jax.jit(lambda x, part=part: pj.allreduce(x, MPI.SUM, comm=part))(jnp.asarray(1)), part.size)
        part.Free()
    ours = pyncclx.Communicator(WORLD)
    x, total = np.full(100, 1.0), np.zeros(100)
    running = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: pj.allreduce(x, MPI.MAX) + 1, x))(jnp.zeros(50))
    for _ in range(20):
        ours.Allreduce(x, total)
        WORLD.Barrier()
    same(total, np.full(100, SIZE))
    same(running, np.full(50, 20))


@subject
def stable_programs():
    """The text of a program is the same in each run, on which persistent caches rely."""
    text = jax.jit(lambda x: pj.allreduce(x, MPI.SUM)).lower(jnp.ones(3)).as_text()
    assert 'call = "comm=0 op=0"' in text, text


@subject
def stable_shuffles():
    """A program's text has the shuffle's number and no address, so it is equal on all ranks."""
    one, other = (pj.TokenShuffle(SIZE, 8, 16, "float32", k=1, max_tokens=1) for _ in range(2))
    numbers = []
    for shuffle in (one, other, one):
        text = jax.jit(shuffle.dispatch).lower(jnp.ones((1, 16)), jnp.zeros((1, 1), int)).as_text()
        numbers += map(int, re.findall(r'call = "shuffle=(\d+)"', text))
        assert len(set(WORLD.allgather(text))) == 1
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0]], numbers


@subject
def dynamic_exchange():
    """alltoallv with traced counts, and its gradient."""
    generator = np.random.default_rng(1)
    for rows, width, kind in ((12, 3, "float32"), (7, 1, "bfloat16"), (0, 5, "int32"), (40, 0, "float32")):
        counts = generator.integers(0, rows // SIZE + 1, (SIZE, SIZE))
        data, begins = [of(q, (rows, width), kind) for q in range(SIZE)], counts.cumsum(1) - counts
        parts = [data[q][begins[q, RANK] :][: counts[q, RANK]] for q in range(SIZE)]
        expected = np.zeros((50, width), jnp.dtype(kind))
        expected[: counts[:, RANK].sum()] = np.concatenate(parts)
        found, received = jax.jit(pj.alltoallv, static_argnums=2)(jnp.asarray(data[RANK]), counts[RANK], 50)
        same(found, expected)
        same(received, counts[:, RANK])


@subject
def dynamic_gradient():
    """The gradient of a row is the weight of its place on the rank that receives it."""
    counts = np.add.outer(np.arange(SIZE), np.arange(SIZE)) % 3 + 1
    weights = [np.arange(60.0).reshape(30, 2) + 1000 * q for q in range(SIZE)]

    def loss(x, counts):
        return (pj.alltoallv(x, counts, 30)[0] * weights[RANK]).sum()

    def with_drops(x):
        return pj.alltoallv(x, counts[RANK], 2, overflow="drop")[0].sum()

    found = jax.jit(jax.grad(loss))(jnp.ones((15, 2)), counts[RANK])
    begins = [counts[:RANK, q].sum() for q in range(SIZE)]
    expected = np.concatenate([weights[q][begins[q] :][: counts[RANK, q]] for q in range(SIZE)])
    same(found, np.pad(expected, ((0, 15 - len(expected)), (0, 0))))

    gradient = np.asarray(jax.grad(with_drops)(jnp.ones((15, 2))))
    same(WORLD.allreduce(gradient.sum()), 2 * np.minimum(counts.sum(0), 2).sum())
