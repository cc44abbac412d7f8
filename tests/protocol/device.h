// What a program's own kernels do (device_meetings.cuh), signals of windows, and atomic changes of a peer's memory.
#pragma once
#include "device_meetings.cuh"
#include "moves.h"
#include "rma.cu"

namespace window_signals {  // whose arguments have the names of others
#include "put_signal.cu"
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
        call.run(wait_signal, WaitSignalArgs{team, signal_word(memory.states[rank], signal), &memory.taken[rank][signal], 1, signal}, 1);
        call.threads = threads;
    };
    const auto put = [&](int peer, u32 signal, const window_signals::PutArgs& data) {
        call.run(put_signal, PutSignalArgs{signal_word(memory.states[peer], signal), data}, 1);
    };
    wait(kCredit);
    window_signals::PutArgs data{send.as(), memory.inboxes[next]->put + shift, nbytes};
    if (call.draw.one_in(3)) {
        call.run(put_blocks, data, call.team.channels);
        data.nbytes = 0;
    }
    put(next, kData, data);
    wait(kData);
    check(call, memory.inboxes[rank]->put + shift, nbytes, last, rank);
    put(last, kCredit, {});
}

// All ranks change the same bytes of one, four of them in a word.
inline void accumulate_bytes(Call& call) {
    call.name = "accumulate";
    const int root = int(call.draw.below(call.size()));
    const u64 count = call.draw.one_in(4) ? call.draw.below(4) : kMostWords - call.draw.below(4), shift = call.draw.below(4);
    unsigned char own[kMostWords], before[kMostWords];
    char* target = call.world.device->inboxes[root]->words + shift;
    const auto of = [&](int rank, u64 i) { return static_cast<unsigned char>(byte_of(call, rank, root, i)); };
    for (u64 i = 0; i < count; ++i) own[i] = of(call.team.rank, i);
    const char* from = reinterpret_cast<const char*>(own);
    const RmaArgs args{from, from, reinterpret_cast<char*>(before), target, count};
    call.run(accumulate<unsigned char, Sum>, args, call.team.channels);
    call.run(barrier, BarrierArgs{call.team}, 1);
    for (u64 i = 0; root == call.team.rank && i < count; ++i) {
        unsigned char expected = 0;
        for (int rank = 0; rank < call.size(); ++rank) expected = static_cast<unsigned char>(expected + of(rank, i));
        if (target[i] != char(expected)) call.wrong("sum", 0, i, "%02x instead of %02x", target[i] & 0xff, expected);
        target[i] = 0;
    }
    call.run(barrier, BarrierArgs{call.team}, 1);
}

struct TalkArgs {
    u64 team, nbytes, count;  // bytes of a piece, numbers of a sum
    u32 epoch;
    DeviceMemory::Inbox* inbox;
    const char* pieces;  // [blocks][kRounds][size + 1]: for each rank, and for all
    char* taken;         // [blocks][kRounds][3][size]: packets, gathered, exchanged
    float* sums;         // [blocks][kRounds][count]: own ones, which become all ranks'
    u64 *said, *heard;   // [blocks]: what a block says to all of its rank, and has heard
    bool* failed;
};

__device__ bool send_packets(const TalkArgs& args, const View& v, const char* pieces, char* taken, u32 epoch) {
    auto& slots = args.inbox->blocks[blockIdx.x].slots[epoch & 1];
    bool ok = true;
    for (int peer = 0; peer < v.size; ++peer)
        ok &= put_packets(view(u64(v.team), peer), u64(slots[v.rank]), u64(pieces + peer * args.nbytes), args.nbytes, peer, epoch, this_warp());
    for (int peer = 0; peer < v.size; ++peer)
        ok &= receive_packets(v, u64(taken + peer * args.nbytes), u64(slots[peer]), args.nbytes, epoch, this_warp());
    return ok;
}

__global__ void talk(const TalkArgs args) {
    const View v = view(args.team);
    auto& inbox = args.inbox->blocks[blockIdx.x];
    const u64 all = v.size * args.nbytes;
    bool ok = true;
    for (u64 round = blockIdx.x * kRounds; round < (blockIdx.x + 1) * kRounds; ++round) {
        const char* pieces = args.pieces + round * (all + args.nbytes);
        char* taken = args.taken + round * 3 * all;
        if (thread_number() < 32) ok &= send_packets(args, v, pieces, taken, args.epoch + u32(round % kRounds));
        ok &= put_to_all(args.team, kAllgather, u64(inbox.arrived), u64(pieces + all), args.nbytes, 0);
        copy(u64(taken + all), u64(inbox.arrived), all, this_block());
        ok &= put_to_all(args.team, kAlltoall, u64(inbox.arrived), u64(pieces), args.nbytes, args.nbytes);
        copy(u64(taken + 2 * all), u64(inbox.arrived), all, this_block());
        copy(u64(inbox.sums), u64(args.sums + round * args.count), args.count * sizeof(float), this_block());
        ok &= fold_for_all<float>(args.team, u64(inbox.sums), args.count);
        copy(u64(args.sums + round * args.count), u64(inbox.sums), args.count * sizeof(float), this_block());
        __syncthreads();
    }
    const bool speaks = thread_number() + 1 == threads_of_block();  // not the thread that counts the blocks
    if (speaks) args.said[blockIdx.x] = args.epoch + blockIdx.x;
    ok &= meet_blocks(*v.team, 0);
    u64 heard = 0;
    for (u32 block = 0; speaks && block < gridDim.x; ++block) heard += args.said[block];
    if (speaks) args.heard[blockIdx.x] = heard;
    const bool last = is_last_block(counter_words(*v.team, 1));
    for (u32 block = 0; last && speaks && block < gridDim.x; ++block) args.said[0] += args.heard[block];
    if (!ok) *args.failed = true;
}

// Blocks of all ranks exchange pieces and fold, round after round; then those of a rank meet.
inline void talk(Call& call) {
    call.name = "blocks that talk";
    const u64 nbytes = call.draw.below(call.draw.of({u64(3), kMostPiece + 1})), count = call.draw.below(kMostSums + 1);
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const u64 size = u64(call.size()), rounds = grid * kRounds;
    const int me = call.team.rank;
    const Buffer pieces(rounds * (size + 1) * nbytes, any_alignment(call)), taken(rounds * 3 * size * nbytes, any_alignment(call));
    std::vector<float> sums(rounds * count + 1);
    std::vector<u64> said(grid), heard(grid);
    bool failed = false;
    const auto number = [&](int rank, u64 i) { return float(byte_of(call, rank, kAll, i)); };  // in any order the sum is exact
    for (u64 i = 0; i < rounds * (size + 1) * nbytes; ++i) {
        const u64 piece = i / nbytes % (size + 1), at = i / nbytes / (size + 1) * nbytes + i % nbytes;
        pieces.as()[i] = byte_of(call, me, piece == size ? kAll : int(piece), at);
    }
    for (u64 i = 0; i < rounds * count; ++i) sums[i] = number(me, i);
    const u32 epoch = u32(call.number * kRounds) + 2;  // never that of another call
    call.run(talk, TalkArgs{u64(call.world.device->team_of(call)), nbytes, count, epoch, call.world.device->inboxes[me],
                            pieces.as(), taken.as(), sums.data(), said.data(), heard.data(), &failed}, grid);
    if (failed) call.wrong("talk", 0, 0, "a function said so");
    for (u64 i = 0; i < rounds * 3 * size * nbytes; ++i) {
        const u64 piece = i / nbytes, round = piece / size / 3, kind = piece / size % 3, source = piece % size;
        if (taken.as()[i] != byte_of(call, int(source), kind == 1 ? kAll : me, round * nbytes + i % nbytes))
            return call.wrong("piece", source, i, "of kind %d in round %d", int(kind), int(round));
    }
    for (u64 i = 0; i < rounds * count; ++i) {
        float expected = 0;
        for (int rank = 0; rank < call.size(); ++rank) expected += number(rank, i);
        if (sums[i] != expected) return call.wrong("sum", 0, i, "%g instead of %g", sums[i], expected);
    }
    u64 all = 0, own = said[0];
    for (u32 block = 0; block < grid; ++block) all += epoch + block;
    for (u32 block = 0; block < grid; ++block) {
        own -= heard[block];
        if (heard[block] != all) call.wrong("block", block, 0, "has heard %llu instead of %llu", heard[block], all);
    }
    if (own != epoch) call.wrong("last block", 0, 0, "has heard too little");
}
