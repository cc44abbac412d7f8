"""The words that kernels record errors in have the same names and places in C++."""

from pyncclx.failures import kernel_errors
from support.cxx_layout import check, needs_compiler


@needs_compiler
def test_words(tmp_path):
    words = {f"offsetof(Watch, {name})": 8 * index for index, name in enumerate(kernel_errors.ErrorWords._fields)}
    codes = {
        "kTimedOut": kernel_errors.TIMED_OUT,
        "kAborted": kernel_errors.ABORTED,
        "kMismatch": kernel_errors.MISMATCH,
    }
    check(tmp_path, ["protocol/layout.cuh"], {}, words | codes | {"sizeof(Watch)": kernel_errors.WORDS_NBYTES})
