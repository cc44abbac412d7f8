"""The protocol tests notice errors: kernels with one planted error each must fail.

All errors are in one copy of cuda/; the number `mutation`, given at run time, switches one on. Each is the
smallest edit that a programmer in a hurry might make.
"""

import functools
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyncclx.system import paths

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]  # the first test waits for the compiler

PROGRAMS = {"mutated": ("-O1", "-DMUTATIONS"), "mutated-tsan": ("-O1", "-DMUTATIONS", "-fsanitize=thread")}
RACE, WRONG, STUCK, TIMEOUT = 66, 1, 3, 4  # exit status, see world.h
AWRY = {WRONG, STUCK, TIMEOUT, -signal.SIGSEGV, -signal.SIGABRT}  # the last two: a place that was not given
SEEDS = 10


@dataclass(frozen=True)
class Mutation:
    """`before` becomes `after` in `file`; {} stands for the condition that switches it on."""

    file: str
    before: str
    after: str
    finds: str  # the check that notices: "tsan" (a race is reported) or "hostile" (a result is wrong, or a wait ends)
    epoch: int = 0
    occurrences: int = 1
    calls: int = 120  # of each rank under ThreadSanitizer


MUTATIONS = {
    # A chunk is announced, and its contents need not come first.
    "stored without release": Mutation(
        "protocol/chunk.cuh",
        "fence_sys();\n            signal_stored",
        "if (!{}) fence_sys();\n            signal_stored",
        "tsan",
    ),
    # A place is given free, and its reads may come later.
    "read without release": Mutation(
        "protocol/chunk.cuh",
        "st_after_loads_sys(",
        "{} ? st_relaxed_sys(&channel.theirs(source)->tail[ring][channel.team.rank], channel.mark(k + 1))"
        " : st_after_loads_sys(",
        "tsan",
    ),
    "folded without release": Mutation("reduction/two_shot.cuh", "fence_sys();", "if (!{}) fence_sys();", "tsan"),
    # What went straight to its place is announced, and may come later.
    "straight without release": Mutation("exchange/exchange.cuh", "fence_sys();", "if (!{}) fence_sys();", "tsan"),
    # A peer's buffer is written while it may still be in use.
    "not entered": Mutation(
        "exchange/exchange.cuh",
        "&& channel.wait_for_entered(peer, channel.epoch);",
        "&& ({} || channel.wait_for_entered(peer, channel.epoch));",
        "tsan",
    ),
    # An early launch reads what the kernel before it has still to write.
    "previous not awaited": Mutation(
        "protocol/channel.cuh", "await_previous(u64(control));", "if (!{}) await_previous(u64(control));", "tsan"
    ),
    # A rank ends while its vector is still being read.
    "no meeting": Mutation(
        "reduction/push_reduce.cuh",
        "return channel.everyone(!channel.is_peer(peer) ||",
        "return channel.everyone({} || !channel.is_peer(peer) ||",
        "tsan",
    ),
    # A result comes where a contribution has yet to be folded.
    "no place apart": Mutation(
        "reduction/push_reduce.cuh",
        "return source + 1 == holder ||",
        "return {} ? source : source + 1 == holder ||",
        "tsan",
    ),
    # In place, a group takes what replaces something that another one has still to send.
    "in place apart": Mutation(
        "exchange/exchange_chunks.cuh",
        "bool in_place, bool copies, Copy copy_own) {",
        "bool asked, bool copies, Copy copy_own) { const bool in_place = asked && !{};",
        "tsan",
    ),
    # Two lanes share a ring, whose counters then go back and forth.
    "lanes cross": Mutation(
        "exchange/exchange_chunks.cuh",
        "lane = int(job / peers % lanes)",
        "lane = {} ? 0 : int(job / peers % lanes)",
        "hostile",
    ),
    # In place a result moves to where rank 0 has yet to read.
    "moved at once": Mutation(
        "reduction/fold_in_place.cuh", "threadIdx.x % 32 != 0 ||", "{} || threadIdx.x % 32 ||", "tsan"
    ),
    # A result comes where something has yet to be sent from.
    "result at once": Mutation(
        "collectives/reduce_scatter_block.cu", "in_place ? const", "in_place && !{} ? const", "tsan"
    ),
    # The same in ordinary arrays: where rank 0's shard was, a result comes before that has been sent.
    "result before it was taken": Mutation(
        "reduction/two_shot.cuh", "if (to != nullptr && peer == 0)", "if (to != nullptr && peer == 0 && !{})", "tsan"
    ),
    # A message's data may come after the word that announces it.
    "ready without release": Mutation(
        "messages/point_to_point.cu",
        "if (threadIdx.x == 0) st_release_sys(put.ready, put.clock);",
        "if (threadIdx.x == 0) {} ? st_relaxed_sys(put.ready, put.clock) : st_release_sys(put.ready, put.clock);",
        "tsan",
    ),
    # A message is signalled as over while threads, or other blocks, still read it.
    "over before it is read": Mutation(
        "messages/point_to_point.cu",
        "__syncthreads();\n    if (threadIdx.x != 0) return false;",
        "if (!{}) __syncthreads();\n    if (threadIdx.x != 0) return false;",
        "tsan",
    ),
    "over before all blocks": Mutation(
        "messages/point_to_point.cu",
        "__threadfence();\n    if (atomicAdd",
        "if (!{}) __threadfence();\n    if (atomicAdd",
        "tsan",
    ),
    # In a channel: a slot is used again that the receiver has not read, and the data may come after its signal.
    "slot is not awaited": Mutation(
        "messages/point_to_point.cu",
        "wait_for_epoch(team, message.done, epoch - 2, message)",
        "wait_for_epoch(team, message.done, epoch - ({} ? 3 : 2), message)",
        "tsan",
    ),
    "channel without a barrier": Mutation(
        "messages/point_to_point.cu",
        "__syncthreads();\n    if (threadIdx.x != 0) return;\n    *message.epoch",
        "if (!{}) __syncthreads();\n    if (threadIdx.x != 0) return;\n    *message.epoch",
        "tsan",
    ),
    # Partitions: bytes are counted before their threads have met, or stored while the receiver uses its buffer.
    "partition without a barrier": Mutation(
        "device/partitions.cuh", "    meet(true);\n", "    if (!{}) meet(true);\n", "tsan"
    ),
    "round is not awaited": Mutation(
        "device/partitions.cuh",
        "wait_for_round(p, p.started, round, round)",
        "wait_for_round(p, p.started, round, round - ({} ? 1 : 0))",
        "tsan",
    ),
    "partition without release": Mutation(
        "device/partitions.cuh",
        "st_release_sys(&p.arrived[partition], round);",
        "if ({}) st_relaxed_sys(&p.arrived[partition], round); else st_release_sys(&p.arrived[partition], round);",
        "tsan",
    ),
    # The rows of a token shuffle, and the counts of its blocks, are announced and may come later.
    "rows without release": Mutation(
        "tokens/stages.cuh",
        "fence_sys();\n        st_relaxed_sys(word(0",
        "if (!{}) fence_sys();\n        st_relaxed_sys(word(0",
        "tsan",
    ),
    "counts without release": Mutation(
        "tokens/stages.cuh",
        "fence_sys();\n        st_relaxed_sys(word(1",
        "if (!{}) fence_sys();\n        st_relaxed_sys(word(1",
        "tsan",
    ),
    "a token done without release": Mutation(
        "tokens/stages.cuh",
        "before = atomic_add_block(&left[stage], ~0u);",
        "before = {} ? atomicAdd(&left[stage], ~0u) : atomic_add_block(&left[stage], ~0u);",
        "tsan",
    ),
    # Rows are stored where another rank may still read those of the last dispatch.
    "rows not awaited": Mutation(
        "tokens/counting.cuh",
        "&& (!channel.is_peer(entering) ||",
        "&& ({} || !channel.is_peer(entering) ||",
        "tsan",
    ),
    # The same of a known dispatch, and of sums.
    "gate always open": Mutation(
        "tokens/stages.cuh", "if (is_open) return", "if (is_open || {}) return", "tsan", calls=400
    ),
    # One thread signals while others still store.
    "no barrier before a signal": Mutation(
        "protocol/chunk.cuh",
        "fill(place(ring, peer, channel.team.rank, k));\n        crew.everyone(true);",
        "fill(place(ring, peer, channel.team.rank, k));\n        if (!{}) crew.everyone(true);",
        "tsan",
    ),
    # One thread has acquired, the others go on without it.
    "no barrier after a wait": Mutation(
        "protocol/chunk.cuh",
        "if (!crew.everyone(crew.member != 0 || wait_for_chunk(ring, source, k))) return false;",
        "if (crew.member == 0) wait_for_chunk(ring, source, k);\n        if (!{}) crew.everyone(true);",
        "tsan",
    ),
    # Numbers of segments are marked in words that are yet to be written.
    "marked too soon": Mutation(
        "collectives/alltoallv_segments.cu",
        "if (warp == 0) read_lengths(args);\n    __syncthreads();",
        "if (warp == 0) read_lengths(args);\n    if (!{}) __syncthreads();",
        "tsan",
    ),
    # A barrier does not order what has been stored at peers before it.
    "barrier without release": Mutation(
        "collectives/barrier.cu", "    fence_sys();", "    if (!{}) fence_sys();", "hostile"
    ),
    # A window's signal comes before what threads put; it is waited for, and what it announces may come later.
    "signalled too soon": Mutation(
        "windows/signals.cu",
        "__syncthreads();\n    if (threadIdx.x == 0) add_release",
        "if (!{}) __syncthreads();\n    if (threadIdx.x == 0) add_release",
        "tsan",
    ),
    "waited without acquire": Mutation(
        "device/meetings.cuh", "ld_acquire_sys(word);", "{} ? ld_relaxed_sys(word) : ld_acquire_sys(word);", "tsan"
    ),
    # Blocks of a program's own kernel go on before others have read what came.
    "to all at once": Mutation(
        "device/meetings.cuh",
        "!meet_ranks(*v.team, 0xffffffffu)) return false;\n    bool ok",
        "(!{} && !meet_ranks(*v.team, 0xffffffffu))) return false;\n    bool ok",
        "tsan",
    ),
    # A word is replaced though another rank has changed it.
    "changed by two": Mutation("windows/rma.cu", "if (was == seen) return", "if (was == seen || {}) return", "hostile"),
    # Only the first lanes of a warp have segments to add up.
    "one lane too few": Mutation(
        "collectives/alltoallv_segments.cu", "going_end, 31);", "going_end, 31 - {});", "hostile"
    ),
    # What comes through a chain is passed on, and may come later; or it is not awaited, or its place is still in use.
    "passed on without release": Mutation("protocol/chain.cuh", "fence_sys();", "if (!{}) fence_sys();", "tsan"),
    "passed on before it came": Mutation(
        "protocol/chain.cuh", "(!comes || wait_for_piece", "(!comes || {} || wait_for_piece", "hostile"
    ),
    "chain too short": Mutation("protocol/chain.cuh", "if (k < places)", "if (k < places + {})", "hostile"),
    # A strip of a chain of lines is left out, or its number overwritten; or the next chain has this one's count.
    "strip left out": Mutation("protocol/line_chain.cuh", "circles + __shfl", "circles + {} + __shfl", "hostile"),
    "strip overwritten": Mutation(
        "protocol/line_chain.cuh", "strips % kStripWords", "strips % ({} ? 1 : kStripWords)", "hostile"
    ),
    "strips not given back": Mutation(
        "protocol/line_chain.cuh", "if (threadIdx.x == 0 && atomic", "if (!{} && threadIdx.x == 0 && atomic", "hostile"
    ),
    # Lines are looked at before they are there; or overwritten by the next operation.
    "half a line": Mutation(
        "protocol/line.cuh",
        "!has_flag() || packs[s].y == flag()",
        "{} || !has_flag() || packs[s].y == flag()",
        "hostile",
    ),
    "no parity of lines": Mutation(
        "protocol/line.cuh", "(channel.epoch & 1)) *", "(channel.epoch & 1 & !{})) *", "hostile"
    ),
    # The ring is one place shorter than the sender thinks.
    "ring too short": Mutation("protocol/chunk.cuh", "if (k < kDepth)", "if (k < kDepth + {})", "hostile"),
    # The packets of two operations share a slot.
    "no parity": Mutation(
        "protocol/packet.cuh", "channel.epoch & 1)", "channel.epoch & 1 & !{})", "hostile", occurrences=2
    ),
    # Packets and lines are overwritten before they are read.
    "slots not awaited": Mutation(
        "protocol/channel.cuh", "{ return await_entered(1); }", "{ return {} || await_entered(1); }", "hostile"
    ),
    # The same, where the check is left out since the peer's signal seems to have come.
    "entered too soon": Mutation(
        "protocol/channel.cuh", "if (on_all_threads)", "if (on_all_threads || {})", "hostile"
    ),
    # The second half of a packet may come later.
    "half a packet": Mutation(
        "protocol/packet.cuh", "&& u32(packet.y >> 32) == epoch", "&& ({} || u32(packet.y >> 32) == epoch)", "hostile"
    ),
    # Counters of long ago look new from the 2^31st operation on, packets of long ago when the epoch begins anew.
    "signed difference": Mutation(
        "protocol/wait.cuh",
        "if (what.seen >=",
        "if ({} ? i64(what.seen - what.expected) >= 0 : what.seen >=",
        "hostile",
        0x90000000,
    ),
    "own slots not scrubbed": Mutation(
        "tokens/shuffle.cuh",
        "channel.epoch != 2) return;",
        "(channel.epoch != 2 || {})) return;",
        "hostile",
        0xFFFFFFFA,
    ),
    "no scrubbing": Mutation(
        "protocol/channel.cuh",
        "if (epoch == 0xffffffffu ||",
        "if ((!{} && epoch == 0xffffffffu) ||",
        "hostile",
        0xFFFFFFF8,
    ),
}


def number(name: str) -> int:
    """What to pass as `mutation`."""
    return 1 + list(MUTATIONS).index(name)


def write(folder: Path) -> Path:
    """Write the kernels with all mutations into `folder`."""
    kernels = Path(shutil.copytree(paths.CUDA_DIR, folder / "cuda"))
    for name, mutation in MUTATIONS.items():
        path = kernels / mutation.file
        text = path.read_text()
        found = text.count(mutation.before)
        assert found == mutation.occurrences, f"{name!r}: {mutation.file} has {mutation.before!r} {found} times"
        path.write_text(text.replace(mutation.before, mutation.after.replace("{}", f"(mutation == {number(name)})")))
    lowest = kernels / "protocol/signal.cuh"
    lowest.write_text("extern int mutation;\n" + lowest.read_text())
    return kernels


@pytest.fixture(scope="module")
def programs(build):
    return build(PROGRAMS, write)


@pytest.fixture(scope="module")
def run(programs):
    """Return a function that makes a run with a mutation, by its number, and gives its exit status and its errors."""

    @functools.cache
    def run(name: str, mutation: int, seed: int, epoch: int, calls: int) -> tuple[int, str]:
        if name == "mutated-tsan":
            done = programs[name](ranks=3, seed=seed, calls=calls, epoch=epoch, mutation=mutation)
        else:
            options = {"epoch": epoch, "hostile": 1, "patience_s": 5, "mutation": mutation}
            done = programs[name](ranks=2 + seed % 3, seed=seed, calls=200, **options)
        return done.returncode, done.stderr[:6000]

    return run


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_noticed(run, name):
    """By one of some runs, which is right without it."""
    mutation = MUTATIONS[name]
    program, noticed = ("mutated-tsan", {RACE}) if mutation.finds == "tsan" else ("mutated", AWRY)
    for seed in range(SEEDS):
        setting = seed, mutation.epoch, mutation.calls
        status, errors = run(program, number(name), *setting)
        assert status in {0, *AWRY, *noticed}, errors  # who does not wait may be stuck before it races
        if status in noticed:
            # a race may be with a buffer that is still read, or that has gone by then
            assert status != RACE or "data race" in errors or "heap-use-after-free" in errors, errors
            assert run(program, 0, *setting) == (0, ""), "it is not right without the mutation"
            return
    pytest.fail(f"{SEEDS} runs were as if nothing was wrong")
