"""The arguments of kernels written in Python are where the kernel around them reads them."""

from pyncclx.memory.parameters import TEAM_NBYTES
from pyncclx.numba_kernels.workspace import NumbaArgs
from support.cxx_layout import check, needs_compiler


@needs_compiler
def test_the_struct_is_that_of_the_kernel(tmp_path):
    check(tmp_path, ["numba_kernels/numba_collective.cu"], {"NumbaArgs": (NumbaArgs, TEAM_NBYTES)})
