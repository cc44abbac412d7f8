"""The structs of messages/arguments.py lie in memory as those of cuda/messages/point_to_point.cu."""

import shutil
import subprocess

import pytest

from pyncclx.messages.arguments import Offer, Pull, Put
from pyncclx.system import paths

CPP_NAMES = {"data": "from", "buffer": "to"}


def assertions(struct, cpp_struct, begin):
    for name, offset in struct.offsets().items():
        yield f"static_assert(offsetof({cpp_struct}, {CPP_NAMES.get(name, name)}) == {begin} + {offset});"
    yield f"static_assert(sizeof({cpp_struct}) == {begin} + {struct.sizeof()});"


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_structs_are_those_of_the_kernels(tmp_path):
    lines = [
        "#include <stddef.h>",
        '#include "messages/point_to_point.cu"',
        *assertions(Put, "Put", "0"),
        *assertions(Pull, "Pull", "0"),
        *assertions(Offer, "OfferArgs", "sizeof(Team)"),
        "static_assert(offsetof(PutArgs, put) == sizeof(Team) && offsetof(PullArgs, pull) == sizeof(Team));",
        "static_assert(offsetof(ExchangeArgs, put) == sizeof(Team));",
        "static_assert(offsetof(ExchangeArgs, pull) == sizeof(Team) + sizeof(Put));",
    ]
    source = tmp_path / "arguments.cpp"
    source.write_text("\n".join(lines))
    command = ["g++", "-std=c++17", "-DPYNCCLX_HOST", "-fsyntax-only", f"-I{paths.CUDA_DIR}", str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
