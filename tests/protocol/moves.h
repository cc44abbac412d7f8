// Barrier, Bcast, Allgather and Alltoall: every byte depends on its sender, receiver, call and place.
#pragma once
#include "world.h"

constexpr int kAll = -1;  // as a receiver: the same bytes for every rank

// Byte `i` of what `source` sends to `target` in this call.
inline char byte_of(const Call& call, int source, int target, u64 i) {
    return char(mix(call.label() + u64(source) * 64 + u64(target + 1), i / 8) >> i % 8 * 8);
}

inline void fill(const Call& call, char* to, u64 nbytes, int source, int target) {
    for (u64 i = 0; i < nbytes; ++i) to[i] = byte_of(call, source, target, i);
}

inline bool check(Call& call, const char* from, u64 nbytes, int source, int target) {
    for (u64 i = 0; i < nbytes; ++i)
        if (from[i] != byte_of(call, source, target, i)) {
            const int expected = byte_of(call, source, target, i) & 0xff;
            call.wrong("bytes", u64(source), i, "%02x instead of %02x", from[i] & 0xff, expected);
            return false;
        }
    return true;
}

// The length of a message between two ranks: as packets (at most `slot` bytes a block), as lines, or several chunks.
inline u64 message_nbytes(Call& call, u64 grid) {
    const u64 slot = grid * (call.team.slot_packets - kHeader) * kPacketNbytes, chunk = 2 * grid * call.team.chunk_nbytes;
    const u64 lines = grid * call.team.slot_rows * kRowPacks * kPackNbytes;
    switch (call.draw.below(7)) {
        case 0: return call.draw.below(3);
        case 4: return lines + call.draw.below(18) - std::min(lines, 18ull);
        case 5: return call.draw.below(lines + 1);
        case 1: return slot - call.draw.below(18);
        case 2: return slot + 1 + call.draw.below(18);
        case 3: return call.draw.below(slot);
        default: return chunk * call.draw.between(1, 5) + call.draw.below(19) - call.draw.below(18);
    }
}

// Whether every second message that fits packets or lines is moved by the kernel for those alone.
inline bool takes_short(const Call& call, u64 nbytes, u32 grid, bool both_ways = true) {
    const u64 packets_nbytes = (call.team.slot_packets - kHeader) / 2 * kPackNbytes;
    const u64 most = !both_ways ? ~0ull : call.team.windows != nullptr ? kStraightNbytes : kLinesNbytes;
    const u64 lines_nbytes = smaller(u64(call.team.slot_rows) * kRowPacks * kPackNbytes, most);
    const u64 part_nbytes = Part(nbytes, grid, 0).nbytes;
    return part_nbytes <= std::max(packets_nbytes, lines_nbytes) && call.label() % 2 == 0;
}

inline u32 any_alignment(Call& call) { return call.own.one_in(2) ? 0 : u32(call.own.below(16)); }

inline void barrier(Call& call) {
    call.name = "barrier";
    call.run(barrier, BarrierArgs{call.team}, 1);
}

inline void bcast(Call& call) {
    void (*const kernels[])(MoveArgs) = {bcast_direct<true>, bcast_two_shot_lines<>, bcast_chain<>, bcast_chain_lines<>};
    const char* const names[] = {"bcast_direct", "bcast_two_shot_lines", "bcast_chain", "bcast_chain_lines"};
    const u64 room = u64(call.team.slot_rows) * kRowPacks * kPackNbytes;
    const u64 kind = room > 64 ? call.draw.below(call.team.slot_rows >= kBatchRows ? 4 : 3) : 2 * call.draw.below(2);
    call.name = names[kind];
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const int root = int(call.draw.below(call.size()));
    u64 nbytes = message_nbytes(call, grid) * (kind >= 2 ? u64(call.draw.between(1, 2)) : 1);
    if (kind == 3) nbytes += call.several_strips(grid);
    if (kind == 1) nbytes = call.draw.below((room - 32) * u64(call.size() - 1) * grid + 1);
    const Buffer buffer(nbytes, any_alignment(call));
    if (call.team.rank == root) fill(call, buffer.as(), nbytes, root, kAll);
    const bool is_short = kind == 0 && takes_short(call, nbytes, grid, false);
    call.run(is_short ? bcast_direct<false> : kernels[kind], MoveArgs{call.team, buffer.as(), buffer.as(), nbytes, root}, grid);
    check(call, buffer.as(), nbytes, root, kAll);
    if (!buffer.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

inline void allgather(Call& call) {
    call.name = "allgather";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const u64 nbytes = message_nbytes(call, grid);
    const Buffer recv(nbytes * call.size(), any_alignment(call)), apart(nbytes, any_alignment(call));
    char* send = call.draw.one_in(3) ? recv.as() + nbytes * call.team.rank : apart.as();
    fill(call, send, nbytes, call.team.rank, kAll);
    call.run(takes_short(call, nbytes, grid) ? allgather<false> : allgather<true>, MoveArgs{call.team, send, recv.as(), nbytes, 0}, grid);
    for (int rank = 0; rank < call.size(); ++rank)
        if (!check(call, recv.as() + nbytes * rank, nbytes, rank, kAll)) break;
    if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

inline void alltoall(Call& call) {
    call.name = "alltoall";
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const u64 nbytes = message_nbytes(call, grid);
    const Buffer recv(nbytes * call.size(), any_alignment(call)), apart(nbytes * call.size(), any_alignment(call));
    const Buffer& send = call.draw.one_in(2) ? recv : apart;
    for (int rank = 0; rank < call.size(); ++rank) fill(call, send.as() + nbytes * rank, nbytes, call.team.rank, rank);
    call.run(takes_short(call, nbytes, grid) ? alltoall<false> : alltoall<true>, MoveArgs{call.team, send.as(), recv.as(), nbytes, 0}, grid);
    for (int rank = 0; rank < call.size(); ++rank)
        if (!check(call, recv.as() + nbytes * rank, nbytes, rank, call.team.rank)) break;
    if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}
