"""Row transforms: the result has the bits of a transform by NumPy before the operation."""

import importlib
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from pyncclx.tokens import memory as token_memory
from support.arrays import Output, get, put, synchronize, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.lease import layout_of
from support.reference import comparing
from support.token_case import Case, generator

pytest.importorskip("numba", reason="transforms are compiled by Numba")
BFLOAT16 = ml_dtypes.bfloat16
TYPES = [("f4", "f4"), ("f4", BFLOAT16), (BFLOAT16, "i1"), ("f8", "f4"), ("f2", "f8")]
pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
operations = pytest.mark.parametrize("operation", ["Allgather", "Alltoall"])


@pyncclx.Transform
def affine(x, row, column, scale, bias):
    return x * scale[row] + bias[column]


@pyncclx.Transform
def located(x, row, column):
    return x + row - 2 * column


@pyncclx.Transform
def halved(x, row, column):
    return x / 2


class Rows:
    """Arrays of one shape on all ranks, and what `affine` makes of them."""

    def __init__(self, comm, shape, types):
        self.comm, self.types = comm, tuple(map(np.dtype, types))
        computed = np.dtype("f8" if self.types[0] == "f8" else "f4")
        random = [np.random.default_rng([rank, *shape]) for rank in range(comm.size)]
        self.values = [each.integers(-9, 10, shape).astype(self.types[0]) for each in random]
        count, columns = (shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else (1, shape[0])
        self.scales = [each.integers(1, 5, count).astype(computed) for each in random]
        self.bias = np.arange(columns).astype(computed) % 7
        flat = [values.reshape(count, columns).astype(computed) for values in self.values]
        made = [rows * scale[:, None] + self.bias for rows, scale in zip(flat, self.scales, strict=True)]
        self.made = np.array([each.reshape(-1) for each in made]).astype(self.types[1])

    @property
    def transform(self):
        return affine(put(self.scales[self.comm.rank]), put(self.bias))

    def expected(self, operation):
        if operation == "Allgather":
            return self.made.reshape(-1)
        return self.made.reshape(self.comm.size, self.comm.size, -1)[:, self.comm.rank].reshape(-1)


def shapes(comm, operation, itemsize):
    """One element, a vector, rows that end within a pack, several dimensions; the longest go as chunks."""
    layout = layout_of(comm)
    rows = 2 * layout.chunk_nbytes * layout.channels // (33 * itemsize) + 3
    blocks = comm.size if operation == "Alltoall" else 1
    return [(blocks * n, *rest) for n, *rest in ((1,), (37,), (3, 7), (5, 2, 8), (2, 129), (rows, 33))]


def spare_compilers(comm, special):
    """On the host device each rank compiles a transform for itself; with many ranks on few processors one will do."""
    if special and comm.size > 4:
        pytest.skip("up to 4 ranks show it")


@operations
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(np.dtype(t).name for t in types))
def test_what_arrives(comm, operation, types):
    """Packets and chunks, whole and partial packs, aligned and not; types that grow and shrink."""
    spare_compilers(comm, types != TYPES[0])
    with comparing() as compare:
        for shape in shapes(comm, operation, np.dtype(types[1]).itemsize):
            for offset in (0, 1):
                rows = Rows(comm, shape, types)
                expected = rows.expected(operation)
                output = Output(expected.size, rows.types[1], offset)
                getattr(comm, operation)(put(rows.values[comm.rank], offset), output.array, transform=rows.transform)
                compare(output, expected, f"{operation} of {shape}, offset {offset}")


@operations
def test_windows_and_all_forms(comm, operation):
    """Straight into arrays that all ranks have mapped, as a request and as one that is started again."""
    with comparing() as compare:
        for shape in shapes(comm, operation, 4):
            rows = Rows(comm, shape, ("f4", "f4"))
            expected, send, transform = rows.expected(operation), put(rows.values[comm.rank]), rows.transform
            window = comm.Alloc(expected.size, "f4")
            window[...] = 7
            getattr(comm, operation)(send, window, transform=transform)
            compare(window, expected, f"window, {shape}")
            window[...] = 7
            synchronize()
            getattr(comm, f"I{operation.lower()}")(send, window, transform=transform).Wait()
            compare(window, expected, f"nonblocking, {shape}")
            request = getattr(comm, f"{operation}_init")(send, window, transform=transform)
            for _ in range(2):
                window[...] = 7
                synchronize()
                request.Start()
                request.Wait()
                compare(window, expected, f"persistent, {shape}")
            request.Free()


def test_example(comm):
    """The cases of examples/operators/row_transforms.py, against NumPy's rows."""
    pytest.importorskip("tqdm")
    spare_compilers(comm, special=True)
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "operators"))
    row_transforms = importlib.import_module("row_transforms")
    for case in row_transforms.CASES:
        right = row_transforms.Example(comm, xp, case, 8 * comm.size, 48).is_right()
        assert_everywhere(comm, right, case.name)


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
@pytest.mark.parametrize("rows_dtype", ["bfloat16", "float8_e4m3"])
def test_token_shuffle(comm, monkeypatch, few, rows_dtype):
    """Tokens and results are what a kernel before would have made of them: in one rank's rows, then rounded."""
    spare_compilers(comm, rows_dtype != "bfloat16")
    if not few:
        monkeypatch.setattr(token_memory, "FEW_NBYTES", 0)
    case = Case(comm, generator(comm, 7), hidden=144, dtype="bfloat16", rows_dtype=rows_dtype).draw()
    with comparing() as compare:
        own, columns = case.own, np.arange(case.hidden, dtype="f4")
        ids, weights = put(case.routing.ids[own]), put(case.weights[own])
        rows, handle = case.shuffle.dispatch(put(case.values[own]), ids, weights, transform=located)
        moved = [v.astype("f4") + np.arange(len(v), dtype="f4")[:, None] - 2 * columns for v in case.values]
        case.check_rows(compare, rows, "dispatch", [each.astype(BFLOAT16) for each in moved])
        again, _ = case.shuffle.dispatch(put(case.values[own]), handle=handle)
        case.check_data(compare, again, case.values, "without a transform")
        sums = case.shuffle.combine(case.expert_out(), handle, transform=halved)
        case.results = [(each.astype("f4") / 2).astype(BFLOAT16) for each in case.results]
        case.check_sums(compare, sums, "combine")
        case.shuffle.combine_begin(case.expert_out(), handle, transform=located)
        sums = case.shuffle.combine_end()
        for of_rank in case.routing.rows:
            for row, (source, token, choice, _) in enumerate(of_rank):
                moved = case.results[source][token, choice].astype("f4") + np.float32(row) - 2 * columns
                case.results[source][token, choice] = moved.astype(BFLOAT16)
        case.check_sums(compare, sums, "combine in two halves")
    case.shuffle.Free()


def test_refusals(comm):
    """Before anything is launched, on all ranks, and the communicator goes on."""
    x, y = xp.ones((2, 3), "f4"), xp.empty((comm.size, 2, 3), "f4")

    @pyncclx.Transform
    def spelled(x, row, column):
        return x.upper()  # the line

    with pytest.raises(TypeError, match="expecting fn"):
        pyncclx.Transform(lambda x: x)
    with pytest.raises(TypeError, match="expecting fn"):
        pyncclx.Transform("x")
    with pytest.raises(TypeError, match="takes 2 arrays, not 1"):
        affine(x)
    with raises_everywhere(comm, TypeError, "takes 2 arrays, not 0"):
        comm.Allgather(x, y, transform=affine)
    with raises_everywhere(comm, TypeError, "expecting a pyncclx.Transform"):
        comm.Allgather(x, y, transform=lambda x, row, column: x)
    with raises_everywhere(comm, TypeError, "cannot read an array of complex64"):
        comm.Allgather(x, y, transform=affine(xp.ones(2, "c8"), x))
    with raises_everywhere(comm, NotSupported, "not int32 of int32"):
        comm.Allgather(x.view("i4"), y.view("i4"), transform=halved)
    with raises_everywhere(comm, NotSupported, "nor in place"):
        comm.Alltoall(MPI.IN_PLACE, y, transform=halved)
    with raises_everywhere(comm, ValueError, "leave it out"):
        comm.Allgather(x, y, transform=halved, algorithm="numba")
    with raises_everywhere(comm, ValueError, "6 elements to a block of 5"):
        comm.Allgather(x, xp.empty(5 * comm.size, "f4"), transform=halved)
    with raises_everywhere(comm, ValueError, "Fortran order"):
        comm.Allgather(xp.asfortranarray(x), y, transform=halved)
    with raises_everywhere(comm, ValueError, "recvbuf.*Fortran order"):
        comm.Allgather(x, xp.asfortranarray(y), transform=halved)
    with raises_everywhere(comm, TypeError, r"(?s)spelled\(x, row, column\) for float32, to float32.*# the line"):
        comm.Allgather(x, y, transform=spelled)
    comm.Allgather(x, y, transform=halved)
    assert (get(y) == 0.5).all()
