// Partitioned messages: every rank sends to the next one, by threads, warps and blocks of a kernel, or by the host's kernels.
//
// No host takes part in a round: that the receiver's buffer is free, and that a partition is there, must follow from the
// kernels' words alone.
#pragma once
#include "device/pready.cuh"
#include "moves.h"

struct TestPartitions {  // of one sender and its receiver
    static constexpr u64 kNbytes = 12 * 400;
    u32 sends, receives;
    alignas(kPackNbytes) char from[kNbytes + 16], to[kNbytes + 16];
    u32 began = 0, finished = 0, started = 0, arrived[12] = {};
    u64 sent[12] = {};
};
constexpr u64 kDivisions = 4;
inline TestPartitions partitioned[kMaxRanks][kDivisions];  // by the sender's rank

// As if all of them had been used so often.
inline void begin_partitions(const Settings& settings) {
    const u32 divisions[kDivisions][2] = {{1, 1}, {6, 4}, {3, 12}, {12, 2}};
    for (auto& each : partitioned)
        for (u64 i = 0; i < kDivisions; ++i) {
            each[i].sends = divisions[i][0];
            each[i].receives = divisions[i][1];
            each[i].began = each[i].started = settings.epoch;
            each[i].finished = settings.epoch * each[i].receives;
            for (u32& word : each[i].arrived) word = settings.epoch;
        }
}

struct ProduceArgs {
    const Partitions* send;
    const char* data;
    u32 who;  // thread, warp, block
};

struct ConsumeArgs {
    const Partitions* receive;
    const char* to;
    char* taken;
    bool* failed;
};

__global__ void produce(const ProduceArgs args) {
    const u64 handle = reinterpret_cast<u64>(args.send), each = args.send->nbytes / args.send->sends;
    const auto make = [&](u32 partition, Members who) {
        copy(u64(args.send->from + partition * each), u64(args.data + partition * each), each, who);
    };
    for (u32 partition = blockIdx.x; partition < args.send->sends; partition += gridDim.x) {
        if (args.who == 2) {
            make(partition, this_block());
            pready(handle, partition, this_block(), MeetBlock());
        } else if (partition % (blockDim.x / 32) == threadIdx.x / 32) {
            if (args.who == 1) {
                make(partition, this_warp());
                pready(handle, partition, this_warp(), MeetWarp());
            } else if (threadIdx.x % 32 == 5) {
                make(partition, this_thread());
                pready(handle, partition, this_thread(), MeetThread());
            }
        }
    }
}

__global__ void consume(const ConsumeArgs args) {
    const Partitions& p = *args.receive;
    const u64 each = p.nbytes / p.receives;
    for (u32 partition = blockIdx.x; partition < p.receives; partition += gridDim.x) {
        const bool speaks = threadIdx.x == 3;
        if (speaks && !(wait_for_partition(p, partition) && has_arrived(p, partition))) *args.failed = true;
        __syncthreads();
        copy(u64(args.taken + partition * each), u64(args.to + partition * each), each, this_block());
    }
}

inline void partitions(Call& call) {
    call.name = "partitions";
    const int rank = call.team.rank, next = (rank + 1) % call.size(), last = (rank + call.size() - 1) % call.size();
    const u64 division = call.draw.below(kDivisions), nbytes = 12 * call.draw.below(401), shift = call.draw.of({0, 0, 4, 7});
    TestPartitions &mine = partitioned[rank][division], &theirs = partitioned[last][division];
    Team team = call.team;
    team.called = {};  // it is no collective operation
    const auto end_of = [&](TestPartitions& t, bool sends) {
        return Partitions{team, t.from + shift, t.to + shift, nbytes, sends ? &t.began : &t.started, &t.started, t.arrived,
                          t.sent, sends ? &t.finished : nullptr, t.sends, t.receives, sends ? next : last, 0};
    };
    const Partitions send = end_of(mine, true), receive = end_of(theirs, false);
    const Buffer data(nbytes, any_alignment(call)), taken(nbytes, any_alignment(call));
    fill(call, data.as(), nbytes, rank, next);
    memset(theirs.to, Buffer::kPoison, sizeof theirs.to);  // the receiver's own until it begins
    call.run(begin_rounds<>, BeginRoundsArgs{2, {&theirs.started, &mine.began}}, 1);

    const u32 grid = u32(call.draw.between(1, call.team.channels)), who = u32(call.draw.below(4));
    if (who < 3) {
        call.run(produce, ProduceArgs{&send, data.as(), who}, grid);
    } else {
        memcpy(mine.from + shift, data.as(), nbytes);
        SendPartitionsArgs args{send, mine.sends, u32(call.draw.between(1, nbytes == 0 ? 1 : 3)), 0, 0, {}};
        if (call.draw.one_in(2)) {
            args.listed = mine.sends;
            for (u32 i = 0; i < mine.sends; ++i) args.numbers[i] = mine.sends - 1 - i;
        }
        call.run(send_partitions<>, args, grid);
    }
    bool failed = false;
    if (call.draw.one_in(2)) {
        call.run(consume, ConsumeArgs{&receive, theirs.to + shift, taken.as(), &failed}, grid);
    } else {
        call.run(await_partitions<>, PartitionsArgs{receive}, 1);
        memcpy(taken.as(), theirs.to + shift, nbytes);
    }
    call.run(await_partitions<>, PartitionsArgs{send}, 1);
    memset(mine.from, Buffer::kPoison, sizeof mine.from);  // the sender's own again
    if (failed) call.wrong("consume", 0, 0, "a wait has ended");
    check(call, taken.as(), nbytes, last, rank);
    for (u64 i = 0; i < sizeof theirs.to; ++i)
        if ((i < shift || i >= shift + nbytes) && theirs.to[i] != char(Buffer::kPoison))
            return call.wrong("memory beside the buffer", 0, i, "was written");
}
