"""The structs and constants of derived/batches.py and nest.py are those of cuda/derived/nests.cuh."""

from pyncclx.derived import batches, nest, packing
from pyncclx.memory.cstruct import offsets_of, sizeof
from support import cxx_layout


@cxx_layout.needs_compiler
def test_as_the_kernels_read_them(tmp_path):
    nests = nest.MOST_NESTS * sizeof(batches.NestStruct)
    constants = {
        "kMostNests": nest.MOST_NESTS,
        "kMostDims": nest.MOST_DIMS,
        "kPackThreads": packing.MOST_THREADS,
        "kWordsAtOnce": batches.WORDS_AT_ONCE,
        "offsetof(DatatypeArgs, nest)": sizeof(batches.BatchStruct),
        "sizeof(DatatypeArgs)": sizeof(batches.BatchStruct) + nests,
        "offsetof(DatatypeArgs, packed)": offsets_of(batches.BatchStruct)["packed"],
        "offsetof(DatatypeArgs, tiles)": offsets_of(batches.BatchStruct)["tiles"],
        "offsetof(DatatypeArgs, nests)": offsets_of(batches.BatchStruct)["nests"],
        "sizeof(Dim)": 3 * 8,
    }
    cxx_layout.check(tmp_path, ["derived/packing.cu"], {"Nest": (batches.NestStruct, 0)}, constants)
