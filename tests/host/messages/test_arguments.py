"""The structs of messages/arguments.py lie in memory as those of cuda/messages/point_to_point.cu."""

import inspect
import shutil
import struct
import subprocess

import pytest

from pyncclx.messages import arguments
from pyncclx.system import paths

CPP_NAMES = {"data": "from", "buffer": "to"}


def assertions(pack, packed, cpp_struct, begin):
    """What a C++ compiler confirms of a struct that `pack` packs, by its parameters in their order."""
    codes = packed.format[1:]
    for index, name in enumerate(inspect.signature(pack).parameters):
        offset = struct.calcsize(f"={codes[:index]}")
        yield f"static_assert(offsetof({cpp_struct}, {CPP_NAMES.get(name, name)}) == {begin} + {offset});"
    yield f"static_assert(sizeof({cpp_struct}) == {begin} + {packed.size});"


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_structs_are_those_of_the_kernels(tmp_path):
    lines = [
        "#include <stddef.h>",
        '#include "messages/point_to_point.cu"',
        *assertions(arguments.put_arguments, arguments.PUT, "Put", "0"),
        *assertions(arguments.pull_arguments, arguments.PULL, "Pull", "0"),
        *assertions(arguments.offer_arguments, arguments.OFFER, "OfferArgs", "sizeof(Team)"),
        *assertions(arguments.message, arguments.MESSAGE, "Message", "0"),
        f"static_assert(sizeof(BatchArgs) == sizeof(Team) + {len(arguments.batch_arguments([]))});",
        f"static_assert(kMostMessages == {arguments.MOST_MESSAGES});",
        "static_assert(offsetof(BatchArgs, messages) == sizeof(Team) + 8);",
        "static_assert(sizeof(BatchArgs) <= 4096);",  # the driver takes no more from older GPUs
        f"static_assert(kPutMessage == {arguments.PUT_MESSAGE} && kSignalMessage == {arguments.SIGNAL_MESSAGE});",
        f"static_assert(kPullMessage == {arguments.PULL_MESSAGE} && kAwaitMessage == {arguments.AWAIT_MESSAGE});",
        "static_assert(offsetof(PutArgs, put) == sizeof(Team) && offsetof(PullArgs, pull) == sizeof(Team));",
        "static_assert(offsetof(ExchangeArgs, put) == sizeof(Team));",
        "static_assert(offsetof(ExchangeArgs, pull) == sizeof(Team) + sizeof(Put));",
    ]
    source = tmp_path / "arguments.cpp"
    source.write_text("\n".join(lines))
    command = ["g++", "-std=c++17", "-DPYNCCLX_HOST", "-fsyntax-only", f"-I{paths.CUDA_DIR}", str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
