// Reduce_scatter with blocks of different lengths, Scan and Exscan, against a loop over the ranks.
#pragma once
#include "reductions.h"

template <class T, class Op>
void reduce_scatter(Call& call) {
    const bool one_shot = call.draw.one_in(2);
    call.name = one_shot ? "reduce_scatter_one_shot" : "reduce_scatter_two_shot";
    u64 grid = call.draw.between(1, call.team.channels);
    BlocksArgs args{};
    u64 longest = 0, total = 0;
    for (int rank = 0; rank < call.size(); ++rank) {
        const u64 count = one_shot ? packet_count<T>(call) : chunk_count<T>(call, grid, 1);
        args.nbytes_of[rank] = count * sizeof(T);
        args.begin_of[rank] = total * sizeof(T);
        longest = std::max(longest, count);
        total += count;
    }
    if (one_shot) grid = call.grid(longest * sizeof(T), call.team.slot_packets * kPacketNbytes);
    const int me = call.team.rank;
    const u64 first = args.begin_of[me] / sizeof(T);
    Reduction<T, Op> whole(call, total, grid, 1, 0), mine(call, args.nbytes_of[me] / sizeof(T), grid, 0, 1);
    whole.fill(whole.send, total);
    const bool in_place = call.own.one_in(3) && args.begin_of[me] == 0;
    static_cast<ReduceArgs&>(args) = whole.args(whole.send, mine.recv, 0);
    if (in_place) args.recv = whole.send.as();
    call.run(one_shot ? reduce_scatter_one_shot<T, Op> : reduce_scatter_two_shot<T, Op>, args, u32(grid));
    if (in_place) memcpy(mine.recv.as(), whole.send.as(), args.nbytes_of[me]);
    mine.check(mine.recv, first);
}

template <class T, class Op>
void scan(Call& call) {
    const bool one_shot = call.draw.one_in(2), exclusive = call.draw.one_in(2), in_place = call.draw.one_in(3);
    call.name = one_shot ? "scan_one_shot" : "scan_two_shot";
    u64 grid = call.draw.between(1, call.team.channels);
    const u64 count = one_shot ? packet_count<T>(call) : chunk_count<T>(call, grid, call.size());
    if (one_shot) grid = call.grid(count * sizeof(T), call.team.slot_packets * kPacketNbytes);
    Reduction<T, Op> reduction(call, count, grid, 1, 1);
    const Buffer& send = in_place ? reduction.recv : reduction.send;
    reduction.fill(send, count);
    const ScanArgs args{reduction.args(send, reduction.recv, 0), exclusive};
    call.run(one_shot ? scan_one_shot<T, Op> : scan_two_shot<T, Op>, args, u32(grid));
    const int end = call.team.rank + !exclusive;
    if (end > 0) reduction.check(reduction.recv, 0, end);
    else if (!in_place) reduction.check_untouched(reduction.recv);
}
