"""Compile every kernel for the host device, on all processors; the tests find them in the cache.

python tests/kernels.py
"""

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pyncclx.backends.host import Device
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES, REDUCTIONS
from pyncclx.operators.bound_op import bound_op

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "operators"))
import operators_gallery

TRANSFORMS = [  # of tests/ranks/operators/test_row_transform.py
    *(("collectives/transformed.cu", "float", "float"), ("collectives/transformed.cu", "float", "Bfloat16")),
    *(("collectives/transformed.cu", "Bfloat16", "signed char"), ("collectives/transformed.cu", "double", "float")),
    ("collectives/transformed.cu", "Half", "double"),
    *(("tokens/dispatch.cu", "Bfloat16", "Bfloat16"), ("tokens/dispatch.cu", "Bfloat16", "Float8")),
    ("tokens/combine.cu", "Bfloat16", "Bfloat16"),
]


def compile_file(file: str) -> str:
    """Compile one file of cuda/ with all its kernels; its name."""
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
        done = (
            processes.map(compile_file, files),
            processes.map(compile_operator, operators_gallery.CASES),
            processes.map(compile_transform, TRANSFORMS),
            processes.map(compile_test, tests),
        )
        for name in (name for names in done for name in names):
            print(name, flush=True)
