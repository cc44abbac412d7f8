"""Kernels on the device API have no race that ThreadSanitizer finds, and it finds one that is planted."""

import subprocess
from pathlib import Path

import pytest

import pyncclx

KERNELS = Path(__file__).resolve().parents[2] / "ranks" / "device" / "device_api.cu"

PROGRAM = r"""
#include KERNELS
using namespace pyncclx;

// What was put is looked at without waiting for the signal, or overwritten before it has been taken.
extern "C" __global__ void hasty(pyncclx_team team, char* inbox, char* row, char* taken, int impatient) {
    const int next = (pyncclx_rank(team) + 1) % pyncclx_size(team);
    for (u64 turn = 1; turn < 4; ++turn) {
        pyncclx_put_signal_block(team, inbox, row, 1024, next, 0, turn);
        if (impatient == 0) pyncclx_wait_until_block(team, 0, turn);
        else pyncclx_barrier_among(team, 0);
        pyncclx_get_block(team, taken, inbox, 1024, pyncclx_rank(team));
        if (impatient != 1) pyncclx_barrier(team);
    }
}

EMULATE(run_moves, moves)
EMULATE(run_ring, ring)
EMULATE(run_tickets, tickets)
EMULATE(run_blocks, blocks)
EMULATE(run_parities, parities)
EMULATE(run_fenced, fenced)
EMULATE(run_hasty, hasty)

constexpr int kRanks = 3, kBlocks = 3, kRow = 1024;

struct alignas(128) Rank {
    DeviceTeam team;
    char words[128 * (8 + kBlocks + 8)];
    struct { u64 count; DeviceWindow window[2]; } table;
    LeaseHeader lease;
    Watch watch;
    alignas(16) char inbox[kRanks * kRow], rows[kRanks * kRow], taken[kRanks * kRow];
    int failed;
    u64 drawn[4 * 64], signal[64];
};
static Rank ranks[kRanks];

static void prepare() {
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < kRanks; ++r) {
        Rank& me = ranks[r];
        me.team.team.rank = r;
        me.team.team.size = kRanks;
        me.team.team.timeout_ns = 30000000000ull;
        me.team.team.watch = &me.watch;
        me.team.team.base[r] = reinterpret_cast<char*>(&me.lease);
        me.team.signals = 8;
        me.team.blocks = kBlocks;
        me.team.counters = 8;
        me.team.windows = reinterpret_cast<DeviceWindows*>(&me.table);
        me.table.count = 1;
        for (int p = 0; p < kRanks; ++p) {
            me.team.state[p] = reinterpret_cast<char*>(&ranks[p].team);
            me.table.window[0].bases[p] = ranks[p].inbox;
            me.table.window[0].nbytes[p] = sizeof ranks[p].inbox;
        }
    }
}

int main(int argc, char** argv) {
    const char* name = argc > 1 ? argv[1] : "";
    std::atomic<int> failures{0};
    for (u64 seed = 0; seed < 4; ++seed) {
        prepare();
        auto rank = [&](int r) {
            Rank& me = ranks[r];
            u64 team = reinterpret_cast<u64>(&me.team);
            char *inbox = me.inbox, *rows = me.rows, *taken = me.taken;
            long long nbytes = kRow - 5, stride = kRow;
            int rounds = 3, first = 0, who = int(seed % 3), impatient = argc > 2 ? atoi(argv[2]) : 0;
            int* failed = &me.failed;
            int* sums = reinterpret_cast<int*>(me.drawn);
            int *lasts = sums + 8, *values = reinterpret_cast<int*>(me.taken), *seen = reinterpret_cast<int*>(me.rows);
            int* board = reinterpret_cast<int*>(me.inbox);
            u64 *words = reinterpret_cast<u64*>(me.inbox), *drawn = me.drawn, *signal = me.signal;
            const void* of_moves[] = {&team, &inbox, &rows, &taken, &nbytes, &stride, &who, &failed};
            const void* of_ring[] = {&team, &inbox, &rows, &taken, &nbytes, &rounds, &first, &who, &failed};
            const void* of_tickets[] = {&team, &words, &drawn, &signal};
            const void* of_blocks[] = {&team, &values, &sums, &lasts, &seen, &rounds};
            const void* of_parities[] = {&team, &board, &seen, &rounds};
            const void* of_fenced[] = {&team, &words, &signal};
            const void* of_hasty[] = {&team, &inbox, &rows, &taken, &impatient};
            const Launch many{kBlocks, 64, 0, 0, seed * 3 + r, 30.0}, one{1, 64, 0, 0, seed * 3 + r, 30.0};
            const Launch few{2, 8, 0, 0, seed * 3 + r, 30.0}, single{1, 1, 0, 0, seed, 30.0};
            int status = 1;
            if (!strcmp(name, "moves")) status = run_moves(&many, of_moves);
            if (!strcmp(name, "ring")) status = run_ring(&one, of_ring);
            if (!strcmp(name, "tickets")) status = run_tickets(&few, of_tickets);
            if (!strcmp(name, "blocks")) status = run_blocks(&many, of_blocks);
            if (!strcmp(name, "parities")) status = run_parities(&many, of_parities);
            if (!strcmp(name, "fenced")) status = run_fenced(&single, of_fenced);
            if (!strcmp(name, "hasty")) status = run_hasty(&one, of_hasty);
            failures += status + me.failed + int(me.watch.failure + me.watch.overflow);
        };
        std::thread second(rank, 1), third(rank, 2);
        rank(0);
        second.join();
        third.join();
    }
    printf("failures %d\n", failures.load());
    return failures != 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("races")
    source, made, hello = folder / "program.cpp", folder / "program", folder / "hello.cpp"
    source.write_text(PROGRAM)
    hello.write_text("#include <thread>\nint main() { std::thread([] {}).join(); }\n")
    flags = ["g++", "-std=c++17", "-O1", "-g", "-pthread", "-fsanitize=thread", "-DPYNCCLX_HOST"]
    tried = subprocess.run([*flags, str(hello), "-o", str(folder / "hello")], capture_output=True, check=False)
    if tried.returncode or subprocess.run([str(folder / "hello")], capture_output=True, check=False).returncode:
        pytest.skip("ThreadSanitizer does not work here")
    definition, include = f'-DKERNELS="{KERNELS}"', f"-I{pyncclx.include_path()}"
    done = subprocess.run([*flags, definition, include, str(source), "-o", str(made)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return made


def run(program: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A report of the sanitizer makes the exit status 66."""
    options = {"TSAN_OPTIONS": "exitcode=66:halt_on_error=1"}
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=100, env=options, check=False
    )


@pytest.mark.parametrize("name", ["moves", "ring", "tickets", "blocks", "parities", "fenced", "hasty"])
def test_no_race(program: Path, name: str) -> None:
    done = run(program, name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("impatient", ["1", "2"])
def test_a_race_would_be_found(program: Path, impatient: str) -> None:
    done = run(program, "hasty", impatient)
    assert done.returncode == 66, done.stdout + done.stderr
    assert "data race" in done.stderr
