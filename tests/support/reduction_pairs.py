"""The pairs of a datatype and an operator with which reductions are tested: all, or some.

Among those of the sample is each datatype, and each operator with each kind of datatypes that it takes.
"""

import os

from pyncclx.arrays.datatypes import TABLE
from pyncclx.launch.sources import FILES
from pyncclx.operators import ops
from support import sample

COMMON = {("float32", "SUM"), ("float64", "SUM"), ("int64", "SUM"), ("int32", "MAX"), ("bfloat16", "SUM")}
EVERY = [(row.name, op.name) for row in TABLE.values() for op in ops.TABLE.values() if row.kind in op.kinds]
_TEMPLATES = {(TABLE[name].cxx, ops.TABLE[operator].cxx) for name, operator in EVERY}
# The files of cuda/ whose kernels are templates of such pairs, and of nothing else.
REDUCTIONS = [file for file, (_, templates) in FILES.items() if templates() and _TEMPLATES.issuperset(templates())]


def _sampled() -> list[tuple[str, str]]:
    cases = [{"datatype": name, "operator": (TABLE[name].kind, operator)} for name, operator in EVERY]
    chosen = {EVERY[place] for place in sample.each_value(cases, seed="pairs")}
    return sorted(COMMON | chosen, key=EVERY.index)


# Of Scan, which folds as Allreduce does, and over nodes.
FEW = [*sorted(COMMON), ("complex128", "AVG"), ("float_int", "MINLOC")]

# Of mpi4py's tests that `make test` runs: those that MPI has, of the types that conformance/run.py chooses.
SUITE = [(name, op) for name in ("int32", "float64", "complex128") for op in ("SUM", "PROD", "MAX", "MIN")]
SUITE = [pair for pair in SUITE if pair in EVERY]

# That tests name, beyond those above, by the file with the kernels: `kernels.py` compiles them with the others.
_OF_SCATTER = [("int8", "SUM"), ("int8", "PROD"), ("float16", "AVG"), ("short_int", "MINLOC"), ("int64", "SUM")]
NAMED = {
    "collectives/allreduce.cu": [
        *(("int8", "SUM"), ("int8", "PROD"), ("int64", "MAX"), ("int64", "BXOR"), ("bfloat16", "AVG")),
        *(("float32", "PROD"), ("float32", "MIN"), ("float64", "AVG"), ("uint8", "SUM"), ("uint8", "BOR")),
        *(("int64", "BAND"), ("int64", "BOR")),
    ],
    "collectives/reduce.cu": [
        *(("int8", "SUM"), ("int8", "PROD"), ("bfloat16", "AVG"), ("double_int", "MAXLOC"), ("int64", "SUM")),
    ],
    "collectives/reduce_scatter.cu": [*_OF_SCATTER, ("int64", "MAX"), ("float16", "SUM"), ("bfloat16", "SUM")],
    "collectives/reduce_scatter_block.cu": [*_OF_SCATTER, ("bfloat16", "SUM"), ("float32", "AVG")],
    "collectives/scan.cu": [("int8", "PROD"), ("int64", "PROD")],
}

# All of them on the host device only: for GPUs each pair is compiled by itself, for seconds.
if sample.ALL and os.environ.get("PYNCCLX_DEVICE") == "host":
    PAIRS = EVERY
else:
    PAIRS = FEW if os.environ.get("PYNCCLX_TEST_NODES") else _sampled()
