"""The operators are legal for exactly the types that MPI allows, and the tests' references agree with MPI's results."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import MOVED_ONLY, TABLE
from pyncclx.errors import NotSupported
from pyncclx.operators import ops
from support.op_references import reference

MPI_OPS = [op for op in ops.TABLE.values() if op.mpi is not None]
PAIR = np.dtype([("value", "f4"), ("index", "i4")])


@pytest.mark.parametrize("op", MPI_OPS, ids=lambda op: op.name)
@pytest.mark.parametrize(
    "datatype", [row for row in TABLE.values() if row.mpi is not None], ids=lambda row: row.name
)
def test_legal_pairs_are_those_of_mpi(op, datatype):
    message = [np.ones(16, "u1"), 1, datatype.mpi]
    errors = []
    for call in (
        lambda: MPI.COMM_SELF.Allreduce(message, [np.empty(16, "u1"), 1, datatype.mpi], op.mpi),
        lambda: ops.check("Allreduce", op, datatype),
    ):
        try:
            call()
        except MPI.Exception as error:
            errors.append(error)
    assert [error.Get_error_class() for error in errors] in ([], [MPI.ERR_OP, MPI.ERR_OP])
    if errors:
        assert f"Allreduce: {op.name} is not defined on {datatype.name}" in str(errors[1])


def test_average_is_for_real_and_complex_numbers():
    legal = {row.kind for row in TABLE.values() if row.kind in ops.AVG.kinds}
    assert legal == {"float", "complex"}
    with pytest.raises(MPI.Exception, match="AVG is not defined on int32"):
        ops.check("Allreduce", ops.AVG, TABLE["int32"])


@pytest.mark.parametrize("op", ops.TABLE.values(), ids=lambda op: op.name)
def test_operators_are_found_and_stay_unique(op):
    assert ops.of(op) is op
    assert pickle.loads(pickle.dumps(op)) is op
    assert {op: 1}[op] == 1
    if op.mpi is not None:
        assert ops.of(op.mpi) is ops.of(MPI.Op(op.mpi)) is op is ops.TABLE[op.name]


@pytest.mark.parametrize("op", [MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP], ids=["OP_NULL", "REPLACE", "NO_OP"])
def test_operators_that_do_not_reduce(op):
    with pytest.raises(MPI.Exception) as caught:
        ops.of(op)
    assert caught.value.Get_error_class() == MPI.ERR_OP


def test_refusals():
    mine = MPI.Op.Create(lambda a, b, datatype: None)
    with pytest.raises(NotSupported, match=r"pyncclx\.Op"):
        ops.of(mine)
    mine.Free()
    for wrong in (None, "SUM", sum):
        with pytest.raises(TypeError, match=r"MPI\.SUM"):
            ops.of(wrong)
    with pytest.raises(NotSupported, match="float64"):
        ops.check("Reduce", ops.SUM, MOVED_ONLY["float128"])
    with pytest.raises(MPI.Exception, match="pair"):
        ops.check("Reduce", ops.MAXLOC, TABLE["float32"])


@pytest.mark.parametrize("op", MPI_OPS, ids=lambda op: op.name)
def test_reference_agrees_with_reduce_local(op):
    random = np.random.default_rng(1)
    if "pair" in op.kinds:
        left, right = np.zeros((2, 64), PAIR)
        for array in (left, right):
            array["value"], array["index"] = random.integers(0, 4, 64), random.integers(0, 9, 64)
        datatype = MPI.FLOAT_INT
    else:
        # Not int8 or int16: Open MPI adds those with saturation on processors with AVX.
        left, right = random.integers(-100, 100, (2, 64), "i4")
        datatype = MPI.INT32_T
    expected = right.copy()
    op.mpi.Reduce_local([left, datatype], [expected, datatype])
    assert reference(op, [left, right]).dtype == left.dtype
    np.testing.assert_array_equal(reference(op, [left, right]), expected)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_halves_are_folded_in_float32_and_rounded_once(dtype):
    tiny = 2.0**-12
    ranks = [np.array([value], dtype) for value in (1, tiny, tiny, tiny, tiny, -1)]
    total = reference(ops.SUM, ranks)
    assert total.dtype == ranks[0].dtype
    assert float(total[0]) == 4 * tiny
    assert float(reference(ops.AVG, ranks[:1] * 3)[0]) == 1


def test_average_of_complex_divides_each_part():
    ranks = [np.array([1 + 2j], "c8"), np.array([0 + 2j], "c8"), np.array([0 + 3j], "c8")]
    (average,) = reference(ops.AVG, ranks)
    assert average.real == np.float32(1) / np.float32(3)
    assert average.imag == np.float32(7) / np.float32(3)


def test_integers_wrap_and_nan_wins():
    assert reference(ops.SUM, [np.array([200], "u1")] * 2)[0] == 144
    nan, one = np.array([np.nan], "f4"), np.array([1], "f4")
    for op in (ops.MIN, ops.MAX):
        assert np.isnan(reference(op, [one, nan])[0])
        assert np.isnan(reference(op, [nan, one])[0])
