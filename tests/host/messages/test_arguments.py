"""The structs of messages/arguments.py lie in memory as those of cuda/messages."""

import inspect
import shutil
import struct
import subprocess

import pytest

from pyncclx.messages import arguments
from pyncclx.system import paths

CPP_NAMES = {"data": "from", "buffer": "to"}
MESSAGE_FIELDS = "data buffer nbytes ready done clock arrived epoch stride first_block blocks kind peer tag unused"


def assertions(pack, packed, cpp_struct, begin):
    """What a C++ compiler confirms of a struct, by the names of its fields, or the parameters of what packs it."""
    codes = packed.format[1:]
    for index, name in enumerate(pack.split() if isinstance(pack, str) else inspect.signature(pack).parameters):
        offset = struct.calcsize(f"={codes[:index]}")
        yield f"static_assert(offsetof({cpp_struct}, {CPP_NAMES.get(name, name)}) == {begin} + {offset});"
    yield f"static_assert(sizeof({cpp_struct}) == {begin} + {packed.size});"


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_structs_are_those_of_the_kernels(tmp_path):
    lines = [
        "#include <stddef.h>",
        '#include "messages/point_to_point.cu"',
        *assertions("data slot ready nbytes clock", arguments.PUT, "Put", "0"),
        *assertions("ready done arrived data buffer nbytes clock peer tag", arguments.PULL, "Pull", "0"),
        *assertions("ready done clock peer tag signals unused", arguments.OFFER, "OfferArgs", "sizeof(Team)"),
        *assertions(MESSAGE_FIELDS, arguments.MESSAGE, "Message", "0"),
        f"static_assert(sizeof(BatchArgs) == sizeof(Team) + {arguments.BATCH.size});",
        f"static_assert(kMostMessages == {arguments.MOST_MESSAGES});",
        "static_assert(offsetof(BatchArgs, messages) == sizeof(Team) + 8);",
        "static_assert(sizeof(BatchArgs) <= 4096);",  # the driver takes no more from older GPUs
        f"static_assert(kPutMessage == {arguments.PUT_MESSAGE} && kSignalMessage == {arguments.SIGNAL_MESSAGE});",
        f"static_assert(kPullMessage == {arguments.PULL_MESSAGE} && kAwaitMessage == {arguments.AWAIT_MESSAGE});",
        "static_assert(offsetof(PutArgs, put) == sizeof(Team) && offsetof(PullArgs, pull) == sizeof(Team));",
        "static_assert(offsetof(ExchangeArgs, put) == sizeof(Team));",
        "static_assert(offsetof(ExchangeArgs, pull) == sizeof(Team) + sizeof(Put));",
    ]
    check(lines, tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_structs_of_partitioned_messages(tmp_path):
    some = arguments.partitions(
        **dict.fromkeys(inspect.signature(arguments.partitions).parameters, 1)
    )
    sent = arguments.send_arguments(some, [3, 1], 2)
    lines = [
        "#include <stddef.h>",
        '#include "messages/partitioned.cu"',
        *assertions(arguments.partitions, arguments.PARTITIONS, "Partitions", "sizeof(Team)"),
        f"static_assert(sizeof(SendPartitionsArgs) == sizeof(Team) + {len(sent)});",
        f"static_assert(offsetof(SendPartitionsArgs, count) == sizeof(Team) + {len(some)});",
        "static_assert(offsetof(SendPartitionsArgs, numbers) == offsetof(SendPartitionsArgs, count) + 16);",
        "static_assert(sizeof(PartitionsArgs) == sizeof(Partitions));",
        f"static_assert(sizeof(BeginRoundsArgs) == {len(arguments.begin_arguments([1]))});",
        "static_assert(offsetof(BeginRoundsArgs, epochs) == 8);",
        f"static_assert(kMostListed == {arguments.MOST_LISTED});",
        f"static_assert(kMostRounds == {arguments.MOST_ROUNDS});",
        "static_assert(sizeof(SendPartitionsArgs) <= 4096 && sizeof(BeginRoundsArgs) <= 4096);",
    ]
    check(lines, tmp_path)


def test_partitions_of_a_launch():
    """A range has no list."""
    for numbers, listed in ([4, 5, 6], []), ([5], []), ([5, 4], [5, 4]), ([0, 2], [0, 2]):
        count, chunks, first, length, *rest = struct.unpack(
            "=4I512I", arguments.send_arguments(b"", numbers, 3)
        )
        assert (count, chunks, first, length) == (len(numbers), 3, numbers[0], len(listed))
        assert rest[:length] == listed


def check(lines, tmp_path):
    source = tmp_path / "arguments.cpp"
    source.write_text("\n".join(lines))
    command = ["g++", "-std=c++17", "-DPYNCCLX_HOST", "-fsyntax-only", f"-I{paths.CUDA_DIR}", str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
