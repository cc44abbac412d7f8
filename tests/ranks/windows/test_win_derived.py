"""One-sided operations with derived datatypes of origin, result and target: as mpi4py's on host memory."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from support.arrays import put
from support.everywhere import raises_everywhere
from support.window_sides import arrays, compared, opened_sides

sides = pytest.fixture(opened_sides)

INT64, DISP, ELEMENTS = MPI.INT64_T, 60, 18  # where operations begin in a rank's memory, and their elements
RUNS = np.sort(np.random.default_rng(2).choice(90, ELEMENTS, replace=False)).tolist()
# Each describes ELEMENTS elements by some elements of its own.
DATATYPES = {
    "contiguous": (3, lambda: INT64.Create_contiguous(6)),
    "vector": (3, lambda: INT64.Create_vector(3, 2, 4)),
    "interleaved": (6, lambda: INT64.Create_vector(3, 1, 12).Create_resized(0, 16)),
    "indexed": (3, lambda: INT64.Create_indexed([1, 3, 2], [9, 0, 4])),
    "irregular": (1, lambda: INT64.Create_indexed_block(1, RUNS)),
    "subarray": (3, lambda: INT64.Create_subarray([4, 5], [2, 3], [1, 1])),
    "struct": (3, lambda: MPI.Datatype.Create_struct([2, 1], [8, 40], [INT64, INT64.Create_vector(4, 1, 2)])),
    "from the end": (3, lambda: INT64.Create_vector(6, 1, -2)),
}
PAIRS = list(itertools.product(("plain", *list(DATATYPES)[:-1]), ("plain", *DATATYPES)))
SYNCHRONISATIONS = ("Fence", "Lock", "Flush", "Start")


@pytest.fixture(scope="module")
def datatypes():
    made = {name: (make().Commit(), count) for name, (count, make) in DATATYPES.items()}
    yield {"plain": (INT64, ELEMENTS), **made}
    for datatype, _ in made.values():
        datatype.Free()


@pytest.mark.parametrize("how", SYNCHRONISATIONS)
@pytest.mark.parametrize("operation", ["Put", "Get"])
def test_copies(comm, sides, datatypes, operation, how):
    def program(side, call, pair):
        (own, count), (theirs, their_count) = (datatypes[name] for name in pair)
        origin, result = arrays(side, call)
        array = origin if operation == "Put" else result
        target = [DISP, their_count, theirs]

        def access():
            if how == "Flush":
                getattr(side.win, f"R{operation.lower()}")([array, count, own], side.target, target).Wait()
            else:
                getattr(side.win, operation)([array, count, own], side.target, target)

        side.epoch(how, access)
        return side.get(array).tolist()

    compared(comm, sides, program, PAIRS)


@pytest.mark.parametrize("how", SYNCHRONISATIONS)
@pytest.mark.parametrize("op", ["SUM", "PROD", "REPLACE"])
def test_accumulate(comm, sides, datatypes, op, how):
    def program(side, call, pair):
        (own, count), (theirs, their_count) = (datatypes[name] for name in pair)
        origin, _ = arrays(side, call)
        arguments = [origin, count, own], side.target, [DISP, their_count, theirs], getattr(MPI, op)

        def access():
            if how == "Flush":
                side.win.Raccumulate(*arguments).Wait()
            else:
                side.win.Accumulate(*arguments)

        side.epoch(how, access)
        return side.get(origin).tolist()

    compared(comm, sides, program, PAIRS)


@pytest.mark.parametrize("op", ["SUM", "MAX", "REPLACE", "NO_OP"])
def test_get_accumulate(comm, sides, datatypes, op):
    names = list(DATATYPES)[:-1]

    def program(side, call, pair):
        (own, count), (theirs, their_count) = (datatypes[name] for name in pair)
        results, result_count = datatypes[names[call % len(names)]]
        origin, result = arrays(side, call)
        arguments = [origin, count, own], [result, result_count, results], side.target, [DISP, their_count, theirs]

        def access():
            if call % 2:
                side.win.Rget_accumulate(*arguments, getattr(MPI, op)).Wait()
            else:
                side.win.Get_accumulate(*arguments, getattr(MPI, op))

        side.epoch("Lock", access)
        return side.get(result).tolist()

    compared(comm, sides, program, PAIRS)


def test_the_target_has_origins_datatype(comm, sides, datatypes):
    def program(side, call, how):
        origin, (datatype, count) = arrays(side, call)[0], datatypes["indexed"]
        operation, target = how
        side.epoch("Fence", lambda: getattr(side.win, operation)([origin, count, datatype], side.target, target))
        return side.get(origin).tolist()

    compared(comm, sides, program, itertools.product(["Put", "Accumulate"], [5, [6], [7, 3]]))


def test_origins_of_absolute_addresses(comm, sides, datatypes):
    def program(side, call, operation):
        array, (theirs, count) = arrays(side, call)[0], datatypes["subarray"]
        start = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
        own = INT64.Create_hindexed([5, 13], [start + 640, start + 16]).Commit()
        access = getattr(side.win, operation)
        side.epoch("Fence", lambda: access([MPI.BOTTOM, 1, own], side.target, [DISP, count, theirs]))
        own.Free()
        return side.get(array).tolist()

    compared(comm, sides, program, ["Put", "Accumulate", "Get"])


def test_records(comm, sides):
    """Elements of several datatypes are copied; MPI accumulates those of one."""
    record = MPI.Datatype.Create_struct([1, 2, 3], [0, 8, 30], [MPI.INT, MPI.DOUBLE, MPI.CHAR]).Commit()
    packed = MPI.Datatype.Create_struct([1, 2, 3], [0, 4, 20], [MPI.INT, MPI.DOUBLE, MPI.CHAR]).Commit()

    def program(side, call, operation):
        array = arrays(side, call)[0]
        access = getattr(side.win, operation)
        side.epoch("Fence", lambda: access([array, 4, record], side.target, [DISP, 4, packed]))
        return side.get(array).tolist()

    compared(comm, sides, program, ["Put", "Get"])
    with raises_everywhere(comm, MPI.Exception, match="of several datatypes") as raised:
        sides[0].win.Accumulate([put(np.zeros(40)), 1, record], 0, [0, 1, record])
    assert raised.value.Get_error_class() == MPI.ERR_ARG
    record.Free()
    packed.Free()
