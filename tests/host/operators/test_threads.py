"""First uses in several threads: the functions of two operators or transforms must not get one name."""

import threading
import time

import numpy as np
import pytest

import pyncclx
from pyncclx import backends
from pyncclx.arrays.buffers import resolve
from pyncclx.jax import statics
from pyncclx.operators import bound_op, linked, row_transform, user_op

THREADS = 4


def slow(function):
    """Lets other threads run before and after `function` is called."""

    def call(*args, **options):
        time.sleep(0.02)
        try:
            return function(*args, **options)
        finally:
            time.sleep(0.02)

    return call


def in_threads(function):
    """What `function` returns for the number of each thread; they begin together."""
    begun, results = threading.Barrier(THREADS), [None] * THREADS

    def run(number):
        begun.wait()
        results[number] = function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in results
    return results


@pytest.fixture
def buffer():
    return resolve(np.ones(3, "f4"), "x", writable=False, device=backends.select())


def test_operators(buffer, monkeypatch):
    monkeypatch.setattr(bound_op, "BoundOp", slow(bound_op.BoundOp))
    operators = [pyncclx.Op(lambda a, b, number=number: a + b * number) for number in range(THREADS)]
    bound = in_threads(lambda number: operators[number].bind("Allreduce", buffer))
    assert len({each.template for each in bound}) == THREADS
    for operator, each in zip(operators, bound, strict=True):
        assert linked.named(each.template) is each
        assert each.fn.__defaults__ == operator.fn.__defaults__


def test_one_operator_in_all_threads(buffer, monkeypatch):
    monkeypatch.setattr(user_op, "bound_op", slow(user_op.bound_op))
    operator = pyncclx.Op(lambda a, b: a + b)
    assert len(set(map(id, in_threads(lambda _: operator.bind("Allreduce", buffer))))) == 1


def test_one_transform_in_all_threads(buffer, monkeypatch):
    monkeypatch.setattr(row_transform, "kept", slow(row_transform.kept))
    monkeypatch.setattr(linked, "add", slow(linked.add))
    types, element = ("float", "float"), buffer.datatype

    @pyncclx.Transform
    def doubled(x, row, column):
        return 2 * x

    applied = in_threads(lambda _: row_transform.apply(doubled, "Allgather", types, element, element))
    assert len({each.template for each in applied}) == 1


def test_numbers_of_objects_in_compiled_programs(monkeypatch):
    monkeypatch.setattr(statics, "Static", slow(statics.Static))
    operators = [pyncclx.Op(lambda a, b: a + b) for _ in range(THREADS)]
    numbered = in_threads(lambda number: statics.op_of(operators[number]))
    assert [statics.value_of("op", each.number) for each in numbered] == operators
