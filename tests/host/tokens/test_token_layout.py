"""pyncclx/tokens/parameters.py and cuda/tokens agree: the same fields at the same places, and the same layout."""

from pyncclx.launch.sources import FILES
from pyncclx.memory.cstruct import sizeof
from pyncclx.memory.parameters import TEAM_NBYTES
from pyncclx.tokens import memory, parameters, settings
from pyncclx.tokens.parameters import CrossingArgs
from support.cxx_layout import check, needs_compiler

SOURCES = ("tokens/dispatch.cu", "tokens/combine.cu", "tokens/collect.cu", "tokens/over_nodes.cu")
CONSTANTS = {
    "kMaxBuckets": settings.MAX_BUCKETS,
    "kMaxChoices": settings.MAX_CHOICES,
    "kMostFewChoices": memory.MOST_FEW_CHOICES,
    "kMostFewCounts": memory.MOST_FEW_COUNTS,
    "kStepPacks<float>": memory.STEP_PACKS,
    "kStepPacks<Float8>": memory.SCALED_STEP_PACKS,
    "kGroup": settings.GROUP,
    "kSend": parameters.SEND,
    "kReceive": parameters.RECEIVE,
}


@needs_compiler
def test_structs_and_limits_are_those_of_the_kernels(tmp_path):
    arguments = TEAM_NBYTES + sizeof(parameters.ShuffleStruct)
    structs = {
        "Shuffle": (parameters.ShuffleStruct, TEAM_NBYTES),
        "DispatchArgs": (parameters.DispatchArgs, arguments),
        "CombineArgs": (parameters.CombineArgs, arguments),
        "CollectArgs": (parameters.CollectArgs, arguments),
        "CrossingArgs": (CrossingArgs, TEAM_NBYTES),
    }
    check(tmp_path, SOURCES, structs, CONSTANTS)


def test_kernels_are_compiled_for_all_types():
    cxx, rows = settings.CXX, settings.ROW_TYPES
    there = [(cxx[tokens], cxx[row]) for tokens in rows for row in rows[tokens]]
    back = [(cxx[tokens], cxx[out]) for tokens in rows for out in (tokens, "float32")]
    assert sorted(FILES["tokens/dispatch.cu"].templates()) == sorted(there)
    assert sorted(FILES["tokens/combine.cu"].templates()) == sorted(set(back))
    assert sorted(FILES["tokens/add_nodes.cu"].templates()) == sorted(set(back))
