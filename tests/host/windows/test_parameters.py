"""The structs of windows/parameters.py lie in memory as those of cuda/windows/."""

import pytest

from pyncclx.memory.cstruct import offsets_of, sizeof
from pyncclx.windows import parameters
from support import cxx_layout

STRUCTS = {
    "rma.cu": ["RmaArgs"],
    "signals.cu": ["PutArgs", "WaitSignalArgs"],
}


@cxx_layout.needs_compiler
@pytest.mark.parametrize("file", STRUCTS)
def test_as_the_kernels_read_them(tmp_path, file):
    structs = {name: (getattr(parameters, name), 0) for name in STRUCTS[file]}
    cxx_layout.check(tmp_path, [f"windows/{file}"], structs)


@cxx_layout.needs_compiler
def test_data_of_a_put_with_a_signal(tmp_path):
    constants = {
        f"offsetof(PutSignalArgs, {'word' if name == 'word' else f'data.{name}'})": offset
        for name, offset in offsets_of(parameters.PutSignalArgs).items()
    }
    constants["sizeof(PutSignalArgs)"] = sizeof(parameters.PutSignalArgs)
    cxx_layout.check(tmp_path, ["windows/signals.cu"], {}, constants)
