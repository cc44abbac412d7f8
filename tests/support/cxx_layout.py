"""Compare structs and constants of Python with those of CUDA sources: a C++ compiler checks one assertion for each."""

import shutil
import subprocess

import pytest

from pyncclx.memory.cstruct import offsets_of, sizeof
from pyncclx.system import paths

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def check(folder, sources, structs, constants=None):
    """Compile what `structs` and `constants` say of the sources.

    `structs`: by the name in C++, a CStruct, and the offset at which its fields begin. `constants`: values by C++
    expressions.
    """
    equal = dict(constants or {})
    for name, (struct, begin) in structs.items():
        fields = offsets_of(struct).items()
        equal |= {f"offsetof({name}, {field})": begin + offset for field, offset in fields}
        equal[f"sizeof({name})"] = begin + sizeof(struct)
    lines = [f'#include "{source}"' for source in ("stddef.h", *sources)]
    lines += [f'static_assert({what} == {value}, "of Python");' for what, value in equal.items()]
    program = folder / "layout.cpp"
    program.write_text("\n".join([*lines, ""]))
    flags = ["-std=c++17", "-w", "-DPYNCCLX_HOST", "-fsyntax-only", f"-I{paths.CUDA_DIR}"]
    compiled = subprocess.run(["g++", *flags, str(program)], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
