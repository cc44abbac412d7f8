"""The structs of windows/atomics.py and signals.py lie in memory as those of cuda/windows/."""

import pytest

from pyncclx.derived import batches, nest
from pyncclx.memory.cstruct import offsets_of, sizeof
from pyncclx.windows import atomics, signals
from support import cxx_layout

STRUCTS = {
    "rma.cu": [atomics.RmaArgs],
    "signals.cu": [signals.PutArgs, signals.WaitSignalArgs],
}


@cxx_layout.needs_compiler
@pytest.mark.parametrize("file", STRUCTS)
def test_as_the_kernels_read_them(tmp_path, file):
    structs = {struct.__name__: (struct, 0) for struct in STRUCTS[file]}
    cxx_layout.check(tmp_path, [f"windows/{file}"], structs)


@cxx_layout.needs_compiler
def test_a_change_by_nests_begins_with_the_target(tmp_path):
    begin = sizeof(batches.BatchStruct) + nest.MOST_NESTS * sizeof(batches.NestStruct)
    constants = {
        "offsetof(RmaNestArgs, result)": begin,
        "sizeof(RmaNestArgs)": begin + sizeof(atomics.RmaNestArgs),
    }
    cxx_layout.check(tmp_path, ["windows/rma.cu"], {}, constants)


@cxx_layout.needs_compiler
def test_data_of_a_put_with_a_signal(tmp_path):
    constants = {
        f"offsetof(PutSignalArgs, {'word' if name == 'word' else f'data.{name}'})": offset
        for name, offset in offsets_of(signals.PutSignalArgs).items()
    }
    constants["sizeof(PutSignalArgs)"] = sizeof(signals.PutSignalArgs)
    cxx_layout.check(tmp_path, ["windows/signals.cu"], {}, constants)
