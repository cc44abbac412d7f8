// Gather, Scatter, Allgatherv, Gatherv and Scatterv; in the last two some blocks are longer than the place for them.
#pragma once
#include "exchange/blocks.cuh"
#include "moves.h"

inline void gather(Call& call) {
    call.name = "gather";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const int me = call.team.rank, root = int(call.draw.below(call.size()));
    const bool in_place = call.draw.one_in(3) && me == root;
    const u64 nbytes = message_nbytes(call, grid);
    const Buffer recv(me == root ? nbytes * call.size() : 0, any_alignment(call)), apart(nbytes, any_alignment(call));
    char* send = in_place ? recv.as() + nbytes * me : apart.as();
    fill(call, send, nbytes, me, root);
    const auto kernel = takes_short(call, nbytes, grid, false) ? gather<false> : gather<true>;
    call.run(kernel, MoveArgs{call.team, send, recv.as(), nbytes, root}, grid);
    for (int rank = 0; me == root && rank < call.size(); ++rank)
        if (!check(call, recv.as() + nbytes * rank, nbytes, rank, root)) break;
    if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

inline void scatter(Call& call) {
    call.name = "scatter";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const int me = call.team.rank, root = int(call.draw.below(call.size()));
    const bool in_place = call.draw.one_in(3) && me == root;
    const u64 nbytes = message_nbytes(call, grid);
    const Buffer send(me == root ? nbytes * call.size() : 0, any_alignment(call)), apart(nbytes, any_alignment(call));
    char* recv = in_place ? send.as() + nbytes * me : apart.as();
    for (int rank = 0; me == root && rank < call.size(); ++rank)
        fill(call, send.as() + nbytes * rank, nbytes, root, rank);
    const auto kernel = takes_short(call, nbytes, grid, false) ? scatter<false> : scatter<true>;
    call.run(kernel, MoveArgs{call.team, send.as(), recv, nbytes, root}, grid);
    check(call, recv, nbytes, root, me);
    if (!apart.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

// Blocks of different lengths, as on all ranks: the last rank's first, with gaps between them.
struct Lengths {
    u64 sent[kMaxRanks], room[kMaxRanks], begin[kMaxRanks], nbytes = 0;  // of a buffer with all the blocks

    Lengths(Call& call, u32 grid, bool may_be_cut) {
        for (int rank = call.size() - 1; rank >= 0; --rank) {
            sent[rank] = room[rank] = message_nbytes(call, grid);
            if (may_be_cut && call.draw.one_in(4)) room[rank] = call.draw.below(sent[rank] + 1);
            begin[rank] = nbytes;
            nbytes += std::max(sent[rank], room[rank]) + call.draw.below(7);
        }
    }
    u64 kept(int rank) const { return std::min(sent[rank], room[rank]); }

    // Arguments of the rank whose buffer has all the blocks, of these lengths; elsewhere there are none.
    BlocksArgs args(const Call& call, const char* send, char* recv, u64 own, int root, const u64* lengths) const {
        BlocksArgs args{};
        args.team = call.team;
        args.send = send;
        args.recv = recv;
        args.nbytes = own;
        args.root = root;
        for (int rank = 0; lengths != nullptr && rank < call.size(); ++rank) {
            args.nbytes_of[rank] = lengths[rank];
            args.begin_of[rank] = begin[rank];
        }
        return args;
    }
};

// Every block as it was sent to `target`, as far as there was room, and nothing between them.
inline void check_blocks(Call& call, const Lengths& lengths, const Buffer& recv, int target) {
    std::vector<bool> written(recv.nbytes, false);
    for (int rank = 0; rank < call.size(); ++rank) {
        if (!check(call, recv.as() + lengths.begin[rank], lengths.kept(rank), rank, target)) return;
        const auto first = written.begin() + i64(lengths.begin[rank]);
        std::fill(first, first + i64(lengths.kept(rank)), true);
    }
    for (u64 i = 0; i < recv.nbytes; ++i)
        if (!written[i] && recv[i] != Buffer::kPoison) return call.wrong("a gap", 0, i, "was written");
    if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

inline void check_overflow(Call& call, bool cut) {
    const u64 expected = cut ? u64(kTruncated) : 0;
    if (call.team.watch->overflow != expected)
        call.wrong("overflow record", 0, 0, "%llu instead of %llu", call.team.watch->overflow, expected);
    call.team.watch->overflow = 0;  // as the host does when it has raised the error
    lease_header(call.team)->overflow = 0;
}

inline void allgatherv(Call& call) {
    call.name = "allgatherv";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const int me = call.team.rank;
    const Lengths lengths(call, grid, false);
    const Buffer recv(lengths.nbytes, any_alignment(call)), apart(lengths.sent[me], any_alignment(call));
    char* send = call.draw.one_in(3) ? recv.as() + lengths.begin[me] : apart.as();
    fill(call, send, lengths.sent[me], me, kAll);
    const u64 longest = *std::max_element(lengths.sent, lengths.sent + call.size());
    call.run(takes_short(call, longest, grid) ? allgatherv<false> : allgatherv<true>, lengths.args(call, send, recv.as(), lengths.sent[me], 0, lengths.sent), grid);
    check_blocks(call, lengths, recv, kAll);
}

inline void gatherv(Call& call) {
    call.name = "gatherv";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const int me = call.team.rank, root = int(call.draw.below(call.size()));
    const Lengths lengths(call, grid, true);
    const Buffer recv(me == root ? lengths.nbytes : 0, any_alignment(call)), apart(lengths.sent[me], any_alignment(call));
    const bool in_place = call.draw.one_in(3) && me == root && lengths.room[me] == lengths.sent[me];
    char* send = in_place ? recv.as() + lengths.begin[me] : apart.as();
    fill(call, send, lengths.sent[me], me, root);
    const u64* rooms = me == root ? lengths.room : nullptr;
    call.run(gatherv, lengths.args(call, send, recv.as(), lengths.sent[me], root, rooms), grid);
    bool cut = false;
    for (int rank = 0; rank < call.size(); ++rank) cut = cut || lengths.room[rank] < lengths.sent[rank];
    if (me == root) check_blocks(call, lengths, recv, root);
    check_overflow(call, cut && me == root);
}

inline void scatterv(Call& call) {
    call.name = "scatterv";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const int me = call.team.rank, root = int(call.draw.below(call.size()));
    const Lengths lengths(call, grid, true);
    const Buffer send(me == root ? lengths.nbytes : 0, any_alignment(call)), apart(lengths.room[me], any_alignment(call));
    const bool cut = lengths.room[me] < lengths.sent[me], in_place = call.draw.one_in(3) && me == root && !cut;
    char* recv = in_place ? send.as() + lengths.begin[me] : apart.as();
    for (int rank = 0; me == root && rank < call.size(); ++rank)
        fill(call, send.as() + lengths.begin[rank], lengths.sent[rank], root, rank);
    const u64* sent = me == root ? lengths.sent : nullptr;
    call.run(scatterv, lengths.args(call, send.as(), recv, lengths.room[me], root, sent), grid);
    check(call, recv, lengths.kept(me), root, me);
    if (!apart.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
    check_overflow(call, cut);
}
