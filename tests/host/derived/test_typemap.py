"""Derived datatypes are flattened to what MPI itself packs."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.derived.nest import MOST_DIMS, MOST_NESTS, bounds, cut
from pyncclx.derived.typemap import typemap_of
from support.typemaps import DATATYPES, packed_by_mpi


@pytest.mark.parametrize("name", DATATYPES)
@pytest.mark.parametrize("count", [1, 3])
def test_packs_what_mpi_packs(name, count):
    datatype = DATATYPES[name]()
    repeated = datatype.Create_contiguous(count).Commit()
    typemap = typemap_of(repeated)
    lower, length = repeated.Get_true_extent()
    size = repeated.Get_size()
    assert (typemap.size, typemap.extent) == (size, repeated.extent)
    assert (typemap.lower, typemap.upper) == (lower, lower + length)
    memory = np.random.default_rng(0).integers(0, 256, max(length, 1), np.uint8)
    ours = np.zeros(size, np.uint8)
    assert len(typemap.nests) <= MOST_NESTS
    assert all(len(nest.dims) <= MOST_DIMS for nest in typemap.nests)
    for start, offset, nbytes in zip(*bounds(typemap.nests), strict=True) if size else ():
        ours[start : start + nbytes] = memory[offset - lower : offset - lower + nbytes]
    np.testing.assert_array_equal(ours, packed_by_mpi(memory, repeated))
    half = cut(typemap.nests, size // 2) if size else ()
    assert sum(bounds(half)[2]) == size // 2 if half else size < 2
    datatype.Free()
    repeated.Free()


@pytest.mark.parametrize(
    ("name", "nests", "dims"),
    [
        ("vector", 1, 1),
        ("vector without gaps", 1, 0),
        ("indexed, regular", 1, 1),
        ("subarray", 1, 2),
        ("subarray of whole rows", 1, 1),
        ("triangle", 1, 0),  # a table of runs
        ("struct", 3, 0),
    ],
)
def test_normal_forms(name, nests, dims):
    """As few nests and loops as can be."""
    datatype = DATATYPES[name]().Commit()
    found = typemap_of(datatype).nests
    assert (len(found), max(len(nest.dims) for nest in found)) == (nests, dims)
    assert (found[0].runs is not None) == (name == "triangle")
    datatype.Free()


def test_a_reused_handle_has_another_typemap():
    for length in (2, 3, 4) * 5:
        datatype = MPI.DOUBLE.Create_vector(3, 1, length).Commit()
        assert typemap_of(datatype).upper == 16 * length + 8
        assert typemap_of(datatype) is typemap_of(datatype)
        datatype.Free()


def test_elements_without_a_datatype_of_mpi():
    for key, nbytes in (("bf16", 2), ("f4", 4), (MPI.DOUBLE_INT, 16), (np.dtype("c16"), 16)):
        assert typemap_of(key).is_contiguous
        assert typemap_of(key).size == nbytes
    with pytest.raises(KeyError):
        typemap_of("zz")
    with pytest.raises(MPI.Exception):
        typemap_of(MPI.DATATYPE_NULL)
