"""Compile kernels for the host device that the tests need, on all processors; they find them in the cache.

    python tests/kernels.py

For the sample of the tests: what moves bytes, and the chosen pairs of a datatype and an operator; else every kernel.
What is missing a test compiles when it calls it.
"""

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pyncclx.arrays.datatypes import TABLE
from pyncclx.backends.host import Device
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES, REDUCTIONS, Template
from pyncclx.operators import ops
from pyncclx.operators.bound_op import bound_op
from support import sample
from support.reduction_pairs import FEW, PAIRS, SUITE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "operators"))
import operators_gallery

CHOSEN = {"collectives/allreduce.cu": PAIRS, "collectives/scan.cu": FEW, "collectives/fold.cu": FEW}
NOT_OF_SUITE = ("collectives/fold.cu", "collectives/reduce_chain.cu")
TRANSFORMS = [  # of tests/ranks/operators/test_row_transform.py
    *(("collectives/transformed.cu", "float", "float"), ("collectives/transformed.cu", "float", "Bfloat16")),
    *(("collectives/transformed.cu", "Bfloat16", "signed char"), ("collectives/transformed.cu", "double", "float")),
    ("collectives/transformed.cu", "Half", "double"),
    *(("tokens/dispatch.cu", "Bfloat16", "Bfloat16"), ("tokens/dispatch.cu", "Bfloat16", "Float8")),
    ("tokens/combine.cu", "Bfloat16", "Bfloat16"),
]


def templates_of(file: str) -> list[Template]:
    """Return the template arguments of a file's kernels that the sample needs."""
    if file not in REDUCTIONS:
        return FILES[file].templates() if file != "windows/rma.cu" else []
    pairs = CHOSEN.get(file, [("float32", "SUM")])
    pairs = list(dict.fromkeys([*pairs, *(SUITE if file not in NOT_OF_SUITE else [])]))
    return [(TABLE[datatype].cxx, ops.TABLE[operator].cxx) for datatype, operator in pairs]


def compile_template(chosen: tuple[str, Template]) -> str:
    """Compile the kernels of a file with some template arguments; return the file's name and these."""
    file, template = chosen
    kernels.compile_image(Device(), file, FILES[file].kernels, template)
    return f"{file} of {', '.join(template) or 'bytes'}"


def compile_file(file: str) -> str:
    """Compile one file of cuda/ with all its kernels; return its name."""
    kernels.compile_whole(Device(), file)
    return file


def compile_operator(name: str) -> str:
    """Compile the kernels that reduce an example's elements by an operator of their own."""
    op = operators_gallery.CASES[name].op
    made = bound_op(op.fn, op.dtype)
    file = "collectives/allreduce.cu"
    kernels.compile_image(Device(), file, FILES[file].kernels, made.template)
    return f"allreduce.cu of {made.template[0]}"


def compile_transform(template: tuple[str, str, str]) -> str:
    """Compile the kernels of a file with a row transform between two types; the file's name."""
    file, *types = template
    Device().compile(file, [f"{kernel}<{', '.join(types)}, RowTransform>" for kernel in FILES[file].kernels])
    return f"{file} of {' and '.join(types)}"


def compile_test(file: Path) -> str:
    """Compile the kernels of a test, which are a program's own; the file's name."""
    Device().compile(str(file), re.findall(r"__global__ void (\w+)", file.read_text()))
    return file.name


if __name__ == "__main__":
    files = sorted(FILES, key=lambda file: file not in REDUCTIONS)  # the long ones first
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        tests = sorted((Path(__file__).parent / "ranks").rglob("*.cu"))
        chosen = [(file, template) for file in files for template in templates_of(file)]
        whole = sample.ALL
        done = (
            processes.map(compile_file, files if whole else ()),
            processes.map(compile_template, () if whole else chosen),
            processes.map(compile_operator, operators_gallery.CASES),
            processes.map(compile_transform, TRANSFORMS),
            processes.map(compile_test, tests),
        )
        for name in (name for names in done for name in names):
            print(name, flush=True)
