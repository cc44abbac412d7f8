"""The words that kernels record errors in have the same names and places in C++."""

from pyncclx.memory import error_words
from support.cxx_layout import check, needs_compiler


@needs_compiler
def test_words(tmp_path):
    words = {f"offsetof(Watch, {name})": 8 * index for index, name in enumerate(error_words.ErrorWords._fields)}
    codes = {"kTimedOut": error_words.TIMED_OUT, "kAborted": error_words.ABORTED, "kMismatch": error_words.MISMATCH}
    check(tmp_path, ["protocol/layout.cuh"], {}, words | codes | {"sizeof(Watch)": error_words.NBYTES})
