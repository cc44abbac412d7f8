"""The arguments of kernels written in Python are where the kernel around them reads them."""

from pyncclx.memory.cstruct import sizeof
from pyncclx.memory.parameters import NO_PLACES, TeamStruct
from pyncclx.numba_kernels.workspace import NumbaArgs
from support.cxx_layout import check, needs_compiler


@needs_compiler
def test_the_struct_is_that_of_the_kernel(tmp_path):
    team = sizeof(TeamStruct) + len(NO_PLACES)
    check(tmp_path, ["numba_kernels/numba_collective.cu"], {"NumbaArgs": (NumbaArgs, team)})
