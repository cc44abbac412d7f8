// Memory that every rank's kernels reach: signals of windows, and atomic changes. What blocks do with it is in talk.h.
#pragma once
#include "device/meetings.cuh"
#include "moves.h"
#include "windows/rma.cu"

namespace window_signals {  // whose arguments have the names of others
#include "windows/signals.cu"
}

constexpr u32 kData = 0, kCredit = 1, kSignals = 2, kCounters = 2;
constexpr u64 kMostPut = 3000, kMostWords = 61, kMostPiece = 150, kMostSums = 40;
constexpr u64 kRounds = 2, kSlotNbytes = (kMostPiece + 15) / 16 * 32;

// Of every rank: the device team, and an inbox with room for a put, for words that are changed atomically, and of each
// block for packets, pieces and sums. It lives as long as the run.
struct DeviceMemory {
    struct Inbox {
        char put[kMostPut + 8], words[kMostWords + 3];
        struct Block {
            char slots[2][kMaxRanks][kSlotNbytes], arrived[kMaxRanks * kMostPiece];
            float sums[kMostSums];
        } blocks[4];
    };
    struct {
        DeviceWindows all;
        DeviceWindow none;
    } windows{};
    Inbox* inboxes[kMaxRanks] = {};
    char* states[kMaxRanks] = {};
    u64 taken[kMaxRanks][kSignals] = {};

    explicit DeviceMemory(const World& world) {
        const Settings& settings = world.settings;
        const u64 before = settings.epoch == 0 ? 0 : ~u64(0) - 4;  // the counts are about to begin anew
        windows.all.count = 1;
        for (int rank = 0; rank < settings.ranks; ++rank) {
            states[rank] = take(sizeof(DeviceTeam) + 128 * (kSignals + settings.channels + kCounters));
            inboxes[rank] = reinterpret_cast<Inbox*>(take(sizeof(Inbox)));
            windows.all.window[0].bases[rank] = reinterpret_cast<char*>(inboxes[rank]);
            windows.all.window[0].nbytes[rank] = sizeof(Inbox);
            DeviceTeam& team = *reinterpret_cast<DeviceTeam*>(states[rank]);
            team.signals = kSignals;
            team.blocks = settings.channels;
            team.counters = kCounters;
            team.windows = &windows.all;
            for (u32 i = 0; i < kSignals; ++i) *signal_word(states[rank], i) = taken[rank][i] = before;
            *signal_word(states[rank], kCredit) += 1;
            for (u32 i = 0; i < kCounters; ++i) counter_words(team, i)->turn = before;
            for (u32 block = 0; block < settings.channels; ++block)
                for (u32& word : barrier_words(team, states[rank], block)->arrived) word = settings.epoch;
            for (u32 block = 0; block < settings.channels; ++block)
                for (u32& word : barrier_words(team, states[rank], block)->sent) word = settings.epoch;
        }
    }

    // This rank's, as it is in a call.
    DeviceTeam* team_of(const Call& call) {
        DeviceTeam* team = reinterpret_cast<DeviceTeam*>(states[call.team.rank]);
        team->team = call.team;
        std::copy_n(states, kMaxRanks, team->state);
        return team;
    }

  private:
    std::vector<std::unique_ptr<Buffer>> kept;

    char* take(u64 nbytes) {
        kept.emplace_back(new Buffer(nbytes + 128));
        char* begin = kept.back()->as();
        begin += (128 - reinterpret_cast<u64>(begin) % 128) % 128;
        memset(begin, 0, nbytes);
        return begin;
    }
};

// A put to the next rank and a count that it waits for; another count says that the place is free again.
inline void put_and_wait(Call& call) {
    call.name = "put_signal and wait_signal";
    using namespace window_signals;
    DeviceMemory& memory = *call.world.device;
    const DeviceTeam* team = memory.team_of(call);
    const int rank = call.team.rank, next = (rank + 1) % call.size(), last = (rank + call.size() - 1) % call.size();
    const u64 nbytes = call.draw.below(call.draw.of({u64(2), kFewBytes + 1, kMostPut + 1}));
    const u32 threads = call.threads, shift = u32(call.draw.of({0, 0, 4, 5}));
    const Buffer send(nbytes, any_alignment(call));
    fill(call, send.as(), nbytes, rank, next);
    const auto wait = [&](u32 signal) {
        call.threads = 1;
        call.run(wait_signal<>, WaitSignalArgs{team, signal_word(memory.states[rank], signal), &memory.taken[rank][signal], 1, signal}, 1);
        call.threads = threads;
    };
    const auto put = [&](int peer, u32 signal, const window_signals::PutArgs& data) {
        call.run(put_signal<>, PutSignalArgs{signal_word(memory.states[peer], signal), data}, 1);
    };
    wait(kCredit);
    window_signals::PutArgs data{send.as(), memory.inboxes[next]->put + shift, nbytes};
    if (call.draw.one_in(3)) {
        call.run(put_blocks<>, data, call.team.channels);
        data.nbytes = 0;
    }
    put(next, kData, data);
    wait(kData);
    check(call, memory.inboxes[rank]->put + shift, nbytes, last, rank);
    put(last, kCredit, {});
}

struct PutAndBarrierArgs {
    window_signals::PutArgs put;
    BarrierArgs barrier;
};

// Both in one launch, since the emulator writes what is delayed before a launch returns. On a GPU a kernel's end puts its
// stores before those of the next, and no peer sees that: it is the barrier that releases them.
__global__ void put_and_barrier(const __grid_constant__ PutAndBarrierArgs args) {
    window_signals::put_blocks<>(args.put);
    __syncthreads();
    barrier(args.barrier);
}

// A put to the next rank that nothing announces but a barrier.
inline void put_and_meet(Call& call) {
    call.name = "put and barrier";
    DeviceMemory& memory = *call.world.device;
    const int rank = call.team.rank, next = (rank + 1) % call.size(), last = (rank + call.size() - 1) % call.size();
    const u64 nbytes = call.draw.below(kMostPut + 1);
    const auto meet = [&] { call.run(barrier, BarrierArgs{call.team}, 1); };
    const Buffer send(nbytes, any_alignment(call));
    fill(call, send.as(), nbytes, rank, next);
    meet();
    const window_signals::PutArgs put{send.as(), memory.inboxes[next]->put, nbytes};
    if (call.draw.one_in(2)) {
        call.run(put_and_barrier, PutAndBarrierArgs{put, {call.team}}, 1);
    } else {
        call.run(window_signals::put_blocks<>, put, call.team.channels);
        meet();
    }
    check(call, memory.inboxes[rank]->put, nbytes, last, rank);
    meet();
}

// All ranks change the same bytes of one, four of them in a word.
inline void accumulate_bytes(Call& call) {
    call.name = "accumulate";
    const int root = int(call.draw.below(call.size()));
    const u64 count = call.draw.one_in(4) ? call.draw.below(4) : kMostWords - call.draw.below(4), shift = call.draw.below(4);
    unsigned char own[kMostWords], before[kMostWords];
    char* target = call.world.device->inboxes[root]->words + shift;
    const auto of = [&](int rank, u64 i) { return static_cast<unsigned char>(byte_of(call, rank, root, i)); };
    const bool is_backwards = call.own.one_in(2);  // by a derived datatype
    for (u64 i = 0; i < count; ++i) own[is_backwards ? count - 1 - i : i] = of(call.team.rank, i);
    const char* from = reinterpret_cast<const char*>(own);
    if (is_backwards) {
        RmaNestArgs args{{target, reinterpret_cast<char*>(own), 0, 1, {}}, reinterpret_cast<char*>(before)};
        args.target.tiles = (count + kWordsAtOnce - 1) / kWordsAtOnce;  // enough for blocks of one thread
        args.target.nest[0] = Nest{i64(count) - 1, 0, nullptr, 0, count, 1, 0, 1, 1, 0, {Dim{count, -1, 1}}};
        call.run(accumulate_nests<unsigned char, Sum>, args, call.team.channels);
    } else {
        const RmaArgs args{from, from, reinterpret_cast<char*>(before), target, count};
        call.run(accumulate<unsigned char, Sum>, args, call.team.channels);
    }
    call.run(barrier, BarrierArgs{call.team}, 1);
    for (u64 i = 0; root == call.team.rank && i < count; ++i) {
        unsigned char expected = 0;
        for (int rank = 0; rank < call.size(); ++rank) expected = static_cast<unsigned char>(expected + of(rank, i));
        if (target[i] != char(expected)) call.wrong("sum", 0, i, "%02x instead of %02x", target[i] & 0xff, expected);
        target[i] = 0;
    }
    call.run(barrier, BarrierArgs{call.team}, 1);
}
