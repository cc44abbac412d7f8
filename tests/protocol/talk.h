// Blocks of a program's own kernels: those of all ranks exchange packets and pieces and fold, then those of a rank meet.
#pragma once
#include "device.h"

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
