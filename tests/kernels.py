"""Compile kernels for the host device that the tests need, on all processors; they find them in the cache.

    python tests/kernels.py

For the sample of the tests: what moves bytes, the chosen pairs of a datatype and an operator, and others that the tests
name; else every kernel. What is missing a test compiles when it calls it. Most of what the compiler does for one
kernel is to read the emulator, so several are compiled as one library.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pyncclx.arrays.datatypes import TABLE
from pyncclx.backends.compilers import cache, gxx
from pyncclx.backends.host import Device
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES, Template, instantiation
from pyncclx.operators import ops
from pyncclx.operators.bound_op import BoundOp, bound_op
from pyncclx.system import paths
from support import sample
from support.reduction_pairs import FEW, NAMED, PAIRS, REDUCTIONS, SUITE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "operators"))
import operators_gallery

Unit = tuple[str, Sequence[Sequence[str]]]  # a file, and the kernels of each group that a test asks for at once

MOST_GROUPS = 12  # of a unit: all processors have something to do
WHOLE = ("collectives/fold.cu", "windows/rma.cu")  # all their kernels take as long as a few
CHOSEN = {"collectives/allreduce.cu": PAIRS, "collectives/scan.cu": FEW}
NOT_OF_SUITE = ("collectives/reduce_chain.cu",)
# Of operators of a program's own: files with the examples' that tests use there, and with types of numbers.
OF_GALLERY = {
    "collectives/allreduce.cu": tuple(operators_gallery.CASES),
    "collectives/fold.cu": tuple(operators_gallery.CASES),
    **dict.fromkeys(
        ("collectives/reduce.cu", "collectives/reduce_scatter_block.cu"),
        ("sum of 3-vectors", "product of 2 by 2 matrices", "product of quaternions"),
    ),
}
OF_NUMBERS = {
    "collectives/allreduce.cu": ("float16", "bfloat16", "complex128", "uint8", "bool"),
    **dict.fromkeys(("collectives/fold.cu", "collectives/reduce_scatter.cu"), ("float64", "uint64")),
    "collectives/reduce_chain.cu": ("int64",),
}
TRANSFORMS = (  # of tests/ranks/operators/test_row_transform.py, tests/ranks/nodes, and docs
    *(("collectives/transformed.cu", "float", "float"), ("collectives/transformed.cu", "float", "Bfloat16")),
    *(("collectives/transformed.cu", "Bfloat16", "signed char"), ("collectives/transformed.cu", "double", "float")),
    *(("collectives/transformed.cu", "Half", "double"), ("collectives/transform_rows.cu", "float", "float")),
    *(("tokens/dispatch.cu", "Bfloat16", "Bfloat16"), ("tokens/dispatch.cu", "Bfloat16", "Float8")),
    *(("tokens/combine.cu", "Bfloat16", "Bfloat16"), ("tokens/combine.cu", "float", "float")),
    ("tokens/dispatch.cu", "float", "float"),
)


def templates_of(file: str) -> list[Template]:
    """Return the template arguments of a file's kernels that the sample needs."""
    if file not in REDUCTIONS:
        return FILES[file].templates()
    pairs = [*CHOSEN.get(file, [("float32", "SUM")]), *NAMED.get(file, [])]
    pairs = list(dict.fromkeys([*pairs, *(SUITE if file not in NOT_OF_SUITE else [])]))
    return [(TABLE[datatype].cxx, ops.TABLE[operator].cxx) for datatype, operator in pairs]


def built_in(file: str) -> Unit:
    """Return the groups of a file that the sample needs."""
    return file, [[instantiation(kernel, *each) for kernel in FILES[file].kernels] for each in templates_of(file)]


def of_operators() -> Iterator[Unit]:
    """Return the groups with operators of a program's own: of the examples, and of numbers."""
    for file, names in OF_GALLERY.items():
        ops_of_file = [operators_gallery.CASES[name].op for name in names]
        yield from (linked(file, bound_op(op.fn, op.dtype)) for op in ops_of_file)
    for file, names in OF_NUMBERS.items():
        yield from (linked(file, bound_op(max, TABLE[name])) for name in names)


def linked(file: str, op: BoundOp) -> Unit:
    """Return the group of a file for elements of an operator's type, or of the file that has it for records."""
    source, names = kernels._linked_names(op, file, FILES[file].kernels)
    return source, [sorted(set(names.values()))]


def of_transforms() -> Iterator[Unit]:
    """Return the groups with row transforms."""
    for file, *types in TRANSFORMS:
        yield file, [[f"{kernel}<{', '.join(types)}, RowTransform>" for kernel in FILES[file].kernels]]


def units(several: Iterable[Unit]) -> list[Unit]:
    """Return the groups anew: those of a file together, each once, and not too many of them."""
    by_file: dict[str, dict[tuple[str, ...], None]] = {}
    for file, groups in several:
        by_file.setdefault(file, {}).update(dict.fromkeys(map(tuple, groups)))
    return [
        (file, list(groups)[place : place + MOST_GROUPS])
        for file, groups in by_file.items()
        for place in range(0, len(groups), MOST_GROUPS)
    ]


def compile_unit(unit: Unit) -> str:
    """Compile groups as one library, which the cache then has under the name that each has alone; the names."""
    file, groups = unit
    source = paths.CUDA_DIR / file
    missing = [group for group in groups if cache.find(gxx._file_name(source, group)) is None]
    names = [name for group in missing for name in group]
    if names:
        library = gxx.compile_cached(source, names)
        for path in {library.parent / gxx._file_name(source, group) for group in missing} - {library}:
            path.unlink(missing_ok=True)  # what is there is damaged
            path.hardlink_to(library)  # a process that needs several of its groups loads it once
    return f"{file}: {', '.join(names)}"


def compile_file(file: str) -> str:
    """Compile one file of cuda/ with all its kernels; return its name."""
    names, templates = FILES[file]
    Device().compile(file, [instantiation(name, *each) for name in names for each in templates()])
    return file


def compile_test(file: Path) -> str:
    """Compile the kernels of a test, which are a program's own; the file's name."""
    Device().compile(str(file), re.findall(r"__global__ void (\w+)", file.read_text()))
    return file.name


def main() -> None:
    files = sorted(FILES, key=lambda file: file not in REDUCTIONS)  # the long ones first
    whole = [file for file in files if sample.ALL or file in WHOLE]
    rest = [built_in(file) for file in files if file not in whole]
    parts = units([*rest, *of_operators(), *of_transforms()])
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        done = (
            processes.map(compile_unit, parts),
            processes.map(compile_file, whole),
            processes.map(compile_test, sorted((Path(__file__).parent / "ranks").rglob("*.cu"))),
        )
        for name in (name for names in done for name in names):
            print(name, flush=True)


if __name__ == "__main__":
    main()
