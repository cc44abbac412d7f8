"""pyncclx/tokens/parameters.py and cuda/tokens agree: the same fields at the same places, and the same limits."""

import shutil
import subprocess

import pytest

from pyncclx.memory.parameters import NO_PLACES, TeamStruct
from pyncclx.system import paths
from pyncclx.tokens import layout, limits, parameters, placement, row_types, settings

STRUCTS = {  # by the name in C++
    "Shuffle": parameters.ShuffleStruct,
    "DispatchArgs": parameters.DispatchArgs,
    "CombineArgs": parameters.CombineArgs,
    "CollectArgs": parameters.CollectArgs,
}
CONSTANTS = {
    "kMaxBuckets": settings.MAX_BUCKETS,
    "kMaxChoices": settings.MAX_CHOICES,
    "kMostFewChoices": limits.MOST_FEW_CHOICES,
    "kMostFewCounts": limits.MOST_FEW_COUNTS,
    "kStepPacks<float>": layout.STEP_PACKS,
    "kStepPacks<Float8>": layout.SCALED_STEP_PACKS,
    "kGroup": row_types.GROUP,
    "kSend": parameters.SEND,
    "kReceive": parameters.RECEIVE,
    "expert_place(1, 0)": placement.MAX_EXPERTS,
}
SOURCES = ("tokens/dispatch.cu", "tokens/combine.cu", "tokens/collect.cu")


def fields(struct):
    """The fields of a struct as C++ calls them, with their offsets."""
    return {name.rstrip("_"): offset for name, offset in struct.offsets().items()}


def expected():
    """What the program prints."""
    team = TeamStruct.sizeof() + len(NO_PLACES)
    lines = [f"{name} {value}" for name, value in CONSTANTS.items()]
    for name, struct in STRUCTS.items():
        begin = team if name == "Shuffle" else team + parameters.ShuffleStruct.sizeof()
        lines += [f"{name}.{field} {begin + offset}" for field, offset in fields(struct).items()]
        lines.append(f"{name} {begin + struct.sizeof()}")
    return lines


def program():
    """A C++ program that prints the same of the sources."""
    prints = [f'    printf("{name} %lld\\n", (long long)({name}));' for name in CONSTANTS]
    for name, struct in STRUCTS.items():
        prints += [f'    printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for field in fields(struct)]
        prints.append(f'    printf("{name} %zu\\n", sizeof({name}));')
    includes = ["<stddef.h>", "<stdio.h>", *(f'"{source}"' for source in SOURCES)]
    return "\n".join([*(f"#include {name}" for name in includes), "int main() {", *prints, "}", ""])


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_structs_and_limits_are_those_of_the_kernels(tmp_path):
    source, binary = tmp_path / "tokens.cpp", tmp_path / "tokens"
    source.write_text(program())
    flags = ["-std=c++17", "-w", "-DPYNCCLX_HOST", "-pthread", f"-I{paths.CUDA_DIR}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(binary)], check=True, timeout=200)
    printed = subprocess.run([str(binary)], capture_output=True, check=True, timeout=20, text=True).stdout
    assert printed.splitlines() == expected()
