"""Subjects of jax_program.py about token shuffles, against loops in NumPy and gradients of plain JAX."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax_program import RANK, SIZE, WORLD, raises, same, subject
from mpi4py import MPI
from routing import Routing

import pyncclx
import pyncclx.jax as pj
from pyncclx import CapacityExceeded

EXPERTS = 2 * SIZE + 1
PLACEMENT = [[expert * SIZE // EXPERTS] for expert in range(EXPERTS)]


class Case:
    """A shuffle, and what all ranks send; elements are small multiples of 1/4, which every type has."""

    def __init__(self, counts, k=2, hidden=16, kind="float32", seed=0, **options):
        random = np.random.default_rng([seed, SIZE])
        size = max(1, sum(counts) * k)
        options = {"capacity": size, "max_tokens": max(counts), "overflow": "raise"} | options
        self.shuffle = pj.TokenShuffle(EXPERTS, hidden=hidden, dtype=kind, k=k, **options)
        self.ids = [random.integers(-1, EXPERTS, (count, k)) for count in counts]
        self.tokens = [random.integers(-8, 9, (count, hidden)).astype(jnp.dtype(kind)) / 4 for count in counts]
        self.weights = [random.integers(1, 9, (count, k)).astype("f4") / 4 for count in counts]
        self.capacity, self.overflow, self.kind = options["capacity"], options["overflow"], jnp.dtype(kind)
        self.choose(1)

    def choose(self, part):
        """Let every `part`-th token have its choices, and the others none."""
        ids = [np.where(np.arange(len(each))[:, None] % part == 0, each, -1) for each in self.ids]
        self.routing = Routing(ids, PLACEMENT, SIZE, self.capacity, overflow=self.overflow)

    @property
    def own(self):
        """What this rank passes to `dispatch`."""
        return self.tokens[RANK], self.routing.ids[RANK], self.weights[RANK]

    def check_rows(self, rows):
        mine = self.routing.rows[RANK]
        rest = self.capacity - len(mine)
        assert rows.data.dtype == self.kind
        data = np.zeros((self.capacity, self.tokens[0].shape[1]), self.kind)
        for row, (s, t, _, _) in enumerate(mine):
            data[row] = self.tokens[s][t]
        same(rows.data, data)
        same(rows.counts, self.routing.counts[RANK])
        same(rows.dropped, self.routing.dropped[RANK])
        same(rows.experts, [row[3] for row in mine] + [-1] * rest)
        same(rows.weights, [self.weights[s][t, c] for s, t, c, _ in mine] + [0] * rest)

    def check_sums(self, sums, factor=1):
        """The sums of all rows times `factor`."""
        results = [np.repeat(each[:, None], self.routing.ids[0].shape[1], 1) * factor for each in self.tokens]
        assert sums.dtype == self.kind
        same(sums, self.routing.combined(results, self.weights, RANK, self.kind).astype(self.kind))


def counts_of(most):
    """Numbers of tokens: the last rank has none, if there are others."""
    return [most - rank for rank in range(SIZE - 1)] + [most if SIZE == 1 else 0]


@subject
def token_shuffles():
    """Few tokens, which go as lines, and many; two shuffles take turns in one program."""
    for most, hidden, kinds in ((5, 16, ("float32", "bfloat16")), (600, 48, ("float16", "float32"))):
        cases = [Case(counts_of(most), k, hidden, kind, k) for k, kind in enumerate(kinds, 1)]

        def program(*arguments, cases=cases):
            found = [case.shuffle.dispatch(*each) for case, each in zip(cases, arguments, strict=True)]
            sums = [
                # What follows the rows would spoil a sum.
                case.shuffle.combine(jnp.where(rows.experts[:, None] < 0, jnp.nan, 3 * rows.data), handle)
                for case, (rows, handle) in zip(cases, found, strict=True)
            ]
            return [rows for rows, _ in found], sums

        compiled = jax.jit(program)
        for part in (1, 1, 3):
            for case in cases:
                case.choose(part)
            for case, rows, sums in zip(cases, *compiled(*[case.own for case in cases]), strict=True):
                case.check_rows(rows)
                case.check_sums(sums, 3)
        for case in cases:
            case.shuffle.Free()


@subject
def shuffle_options():
    """Without weights, without jit, on another communicator, with experts on other ranks."""
    case = Case(counts_of(4))
    case.weights = [np.ones_like(each) for each in case.weights]
    rows, handle = case.shuffle.dispatch(*case.own[:2])
    case.check_rows(rows)
    case.check_sums(case.shuffle.combine(rows.data, handle))
    case = Case(counts_of(4))
    rows, handle = case.shuffle.dispatch(*case.own)
    case.weights = [np.ones_like(each) for each in case.weights]
    case.check_sums(case.shuffle.combine(rows.data, handle, weighted=False))

    turned = WORLD.Split(0, -RANK)
    shuffle = pj.TokenShuffle(SIZE, 4 * SIZE, 16, "float32", k=1, max_tokens=1, comm=turned, placement=range(SIZE))
    assert shuffle.local_experts == [turned.rank]
    rows, _ = jax.jit(shuffle.dispatch)(jnp.full((1, 16), RANK, "f4"), jnp.full((1, 1), turned.rank))
    same(rows.data[0], np.full(16, RANK))


@subject
def shuffle_overflows():
    """Rows without room are dropped, and their gradients are zero; a later call raises, or none does."""
    case = Case(counts_of(9), capacity=7, overflow="drop")
    rows, handle = jax.jit(case.shuffle.dispatch)(*case.own)
    case.check_rows(rows)
    case.check_sums(case.shuffle.combine(rows.data, handle))
    gradient = jax.jit(jax.grad(lambda tokens: case.shuffle.dispatch(tokens, *case.own[1:])[0].data.sum()))(case.own[0])
    kept = [sum((RANK, t, c) in case.routing.row_of for c in range(2)) for t in range(len(gradient))]
    same(gradient, np.repeat(np.array(kept, int)[:, None], 16, 1))

    full = pj.TokenShuffle(SIZE, 2 * SIZE, 16, "float32", k=1, max_tokens=3)
    counts_for = jax.jit(lambda *arguments: full.dispatch(*arguments)[0].counts)
    tokens, fitting = jnp.ones((3, 16)), jnp.array([[RANK], [-1], [RANK]])
    same(counts_for(tokens, jnp.zeros((3, 1), int)), [2 * SIZE * (RANK == 0)])
    if RANK == 0:
        raises(jax.errors.JaxRuntimeError, lambda: counts_for(tokens, fitting).block_until_ready(), "CapacityExceeded")
    same(counts_for(tokens, fitting), [2])
    counts_for(tokens, jnp.zeros((3, 1), int))
    raises(CapacityExceeded, lambda: pj.TokenShuffle(1, 1, 16, k=1, max_tokens=1), "rank 0 has room")
    same(counts_for(tokens, fitting), [2])


def by_hand(tokens, ids, weights, matrices):
    """The layer in plain JAX, with all experts: sums over a token's choices."""
    results = jnp.tanh(jnp.einsum("th,ehj->tej", tokens, matrices))
    chosen = jnp.where(ids[..., None] < 0, 0, jnp.take_along_axis(results, ids[..., None] % EXPERTS, 1))
    return (chosen * weights[..., None]).sum(1)


def layer(shuffle, tokens, ids, weights, matrices):
    """The same by a shuffle, with this rank's matrices."""
    rows, handle = shuffle.dispatch(tokens, ids, weights)
    return shuffle.combine(jnp.tanh(jax.lax.ragged_dot(rows.data, matrices, rows.counts)), handle)


def check_gradients(case):
    """Gradients of tokens, weights and matrices are those of plain JAX on one rank with all experts."""
    matrices = np.random.default_rng(SIZE).standard_normal((EXPERTS, 16, 16)).astype("f4") / 4
    cut = np.cumsum([len(each) for each in case.tokens])[:-1]
    tokens, ids, weights = (np.concatenate(each) for each in (case.tokens, case.routing.ids, case.weights))

    def of_all(tokens, weights, matrices):
        return (by_hand(tokens, ids, weights, matrices) ** 2).sum()

    def of_own(tokens, weights, matrices):
        return (layer(case.shuffle, tokens, case.own[1], weights, matrices) ** 2).sum()

    local = matrices[case.shuffle.local_experts]
    found = jax.jit(jax.grad(of_own, (0, 1, 2)))(case.own[0], case.own[2], local)
    expected = [np.asarray(each) for each in jax.grad(of_all, (0, 1, 2))(tokens, weights, matrices)]
    close(found[0], np.split(expected[0], cut)[RANK])
    close(found[1], np.split(expected[1], cut)[RANK] * (case.own[1] >= 0))
    close(found[2], expected[2][case.shuffle.local_experts])


@subject
def shuffle_gradients():
    for most, k in ((5, 2), (300, 1), (3, 4)):
        check_gradients(Case(counts_of(most), k, seed=most))


@subject
def shuffles_over_nodes():
    """Neighbours are on different nodes; what a rank sends to another node crosses once."""
    os.environ["PYNCCLX_NODE"] = str(RANK % 2)
    apart = pyncclx.Communicator(WORLD.Split(0, RANK))
    assert SIZE == 1 or "2 nodes" in apart.explain("Allreduce", 8), apart.explain("Allreduce", 8)
    for most in (5, 90):
        case = Case(counts_of(most), comm=apart)
        rows, handle = jax.jit(case.shuffle.dispatch)(*case.own)
        case.check_rows(rows)
        case.check_sums(case.shuffle.combine(rows.data, handle))
        check_gradients(case)
        case.shuffle.Free()
    del os.environ["PYNCCLX_NODE"]


def close(found, expected):
    """Assert that two arrays are equal but for rounding."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    np.testing.assert_allclose(np.asarray(found, "f4"), expected, rtol=1e-4, atol=1e-4)


@subject
def shuffle_gradients_of_pieces():
    """Exact gradients in short types, of rows' weights, and without weights."""
    for kind in ("bfloat16", "float16"):
        case = Case(counts_of(6), kind=kind)
        shuffle, (tokens, ids, weights) = case.shuffle, case.own

        def loss(tokens, weights, weighted, shuffle=shuffle, ids=ids):
            rows, handle = shuffle.dispatch(tokens, ids, weights)
            results = jnp.where(rows.experts[:, None] < 0, jnp.nan, rows.data * 2)
            return shuffle.combine(results, handle, weighted=weighted).astype("f4").sum() + rows.weights.sum()

        chosen = ids >= 0
        for weighted in (True, False):
            of_tokens, of_weights = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)(tokens, weights, weighted)
            assert of_tokens.dtype == jnp.dtype(kind)
            factors = np.where(chosen, weights if weighted else 1, 0).sum(1, keepdims=True)
            same(of_tokens, np.broadcast_to(2 * factors, tokens.shape))
            sums = 2 * tokens.astype("f4").sum(1, keepdims=True) * weighted
            same(of_weights, np.where(chosen, sums + 1, 0))
        same(jax.grad(loss)(tokens, None, True), np.broadcast_to(2 * chosen.sum(1, keepdims=True), tokens.shape))


@subject
def shuffle_control_flow():
    """Layers in scan and checkpoint, a handle that a loop carries, branches, and calls that cross."""
    case = Case(counts_of(4), 2)
    shuffle, (tokens, ids, weights) = case.shuffle, case.own
    random = np.random.default_rng(7)
    matrices = random.standard_normal((3, EXPERTS, 16, 16)).astype("f4") / 4
    local = matrices[:, shuffle.local_experts]

    def stack(tokens, matrices, layer, wrap=lambda function: function):
        step = wrap(lambda x, m: (x + layer(x, m), None))
        return jax.lax.scan(step, tokens, matrices)[0]

    shuffled = lambda x, m: layer(shuffle, x, ids, weights, m)  # noqa: E731
    plain = lambda x, m: by_hand(x, ids, weights, m)  # noqa: E731
    expected = jax.grad(lambda x: (stack(x, matrices, plain) ** 2).sum())(tokens)
    for wrap in (lambda function: function, jax.checkpoint):
        loss = lambda x, wrap=wrap: (stack(x, local, shuffled, wrap) ** 2).sum()  # noqa: E731
        close(jax.jit(jax.grad(loss))(tokens), expected)

    def program(tokens, flag):
        first, second = shuffle.dispatch(tokens, ids, weights), shuffle.dispatch(2 * tokens, ids[::-1], weights)
        doubled = shuffle.combine(second[0].data, second[1])
        once = shuffle.combine(first[0].data, first[1])
        more = jax.lax.cond(flag, lambda x: shuffle.combine(x, first[1]), lambda x: once * 5, first[0].data * 7)
        carry = jax.lax.while_loop(
            lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, carry[1], shuffle.combine(*carry[1])),
            (0, (first[0].data * 4, first[1]), once),
        )
        return once, doubled, more, carry[2]

    compiled = jax.jit(program)
    for flag, factor in ((True, 7), (False, 5)):
        once, doubled, more, last = compiled(tokens, flag)
        case.check_sums(once)
        case.check_sums(more, factor)
        case.check_sums(last, 4)
        turned = np.where(ids[::-1] >= 0, weights, 0).sum(1, keepdims=True)
        same(doubled, 2 * tokens * turned)


@subject
def shuffle_errors():
    """Wrong arguments raise while JAX traces, also in a freed shuffle; the next call is right."""
    case = Case(counts_of(3))
    shuffle, (tokens, ids, weights) = case.shuffle, case.own
    more = jnp.ones((4, 16))
    raises(ValueError, lambda: shuffle.dispatch(tokens[:, :8], ids), "tokens has the shape")
    raises(ValueError, lambda: shuffle.dispatch(tokens, ids[:, :1]), "topk_ids has the shape")
    raises(ValueError, lambda: shuffle.dispatch(tokens, ids, weights.T[:1]), "topk_weights has the shape")
    raises(ValueError, lambda: shuffle.dispatch(more, jnp.zeros((4, 2), int)), "max_tokens is 3")
    raises(TypeError, lambda: shuffle.dispatch(tokens.astype("f2"), ids), "array of float16")
    raises(TypeError, lambda: shuffle.dispatch(tokens, weights), "topk_ids is an array of float32")
    raises(TypeError, lambda: shuffle.dispatch(tokens, ids, ids), "expecting floating")
    rows, handle = jax.jit(shuffle.dispatch)(tokens, ids, weights)
    other = Case(counts_of(3)).shuffle
    raises(ValueError, lambda: other.combine(rows.data, handle), "this shuffle")
    raises(ValueError, lambda: shuffle.combine(rows.data, rows), "this shuffle")
    raises(ValueError, lambda: shuffle.combine(rows.data[1:], handle), "expert_out has the shape")
    raises(ValueError, lambda: pj.TokenShuffle(0, 1, 16, k=1, max_tokens=1), "num_experts is 0")
    raises(TypeError, lambda: jax.jvp(lambda x: shuffle.dispatch(x, ids)[0].data, (tokens,), (tokens,)), "custom_vjp")
    raises(NotImplementedError, lambda: jax.vmap(lambda x: shuffle.dispatch(x, ids)[0])(tokens[None]), "Batching rule")
    twice = jax.grad(lambda x: jax.grad(functools.partial(total, shuffle, ids))(x).sum())
    raises(NotImplementedError, lambda: jax.jit(twice).lower(tokens), "Differentiation rule")
    case.check_sums(shuffle.combine(rows.data, handle))
    compiled = jax.jit(lambda x: shuffle.dispatch(x, ids)[0].data).lower(tokens).compile()
    shuffle.Free()
    raises(ValueError, lambda: shuffle.dispatch(tokens, ids), "freed")
    raises(ValueError, lambda: shuffle.combine(rows.data, handle), "freed")
    raises(jax.errors.JaxRuntimeError, lambda: compiled(tokens).block_until_ready(), "freed")
    same(pj.allreduce(jnp.ones(3), MPI.SUM), np.full(3, SIZE))


def total(shuffle, ids, tokens):
    """The sum of squares of a dispatch's rows."""
    return (shuffle.dispatch(tokens, ids)[0].data ** 2).sum()
