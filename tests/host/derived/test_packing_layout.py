"""The structs and constants of derived/batches.py and nest.py are those of cuda/derived/packing.cu."""

from pyncclx.derived import batches, nest, packing
from support import cxx_layout


@cxx_layout.needs_compiler
def test_as_the_kernels_read_them(tmp_path):
    nests = nest.MOST_NESTS * batches.NestStruct.sizeof()
    constants = {
        "kMostNests": nest.MOST_NESTS,
        "kMostDims": nest.MOST_DIMS,
        "kPackThreads": packing.MOST_THREADS,
        "kWordsAtOnce": batches.WORDS_AT_ONCE,
        "offsetof(DatatypeArgs, nest)": batches.BatchStruct.sizeof(),
        "sizeof(DatatypeArgs)": batches.BatchStruct.sizeof() + nests,
        "offsetof(DatatypeArgs, packed)": batches.BatchStruct.offsets()["packed"],
        "offsetof(DatatypeArgs, tiles)": batches.BatchStruct.offsets()["tiles"],
        "offsetof(DatatypeArgs, nests)": batches.BatchStruct.offsets()["nests"],
        "sizeof(Dim)": 3 * 8,
    }
    cxx_layout.check(tmp_path, ["derived/packing.cu"], {"Nest": (batches.NestStruct, 0)}, constants)
