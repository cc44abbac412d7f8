// Allreduce, Reduce and Reduce_scatter_block against a loop over the ranks; one of records, which do not divide 16 bytes.
#pragma once
#include "collectives/records.cu"
#include "world.h"

// Element types: what a rank contributes, made from a random word; and a step of the fold, in rank order.
inline float made(u64 word, float) { return float(i64(word) >> 40) / float(1 << (word & 15)); }  // the order matters
inline int made(u64 word, int) { return int(word >> 7); }
inline Bfloat16 made(u64 word, Bfloat16) { return Bfloat16(float(int(word % 33) - 16)); }  // sums are exact
inline Complex<double> made(u64 word, Complex<double>) {
    return {1.0 + double(word & 0xffff) / 65536, double(word >> 16 & 0xffff) / 65536 - 0.5};
}
inline float folded(float a, float b, Sum) { return a + b; }
inline int folded(int a, int b, Max) { return std::max(a, b); }
inline Bfloat16 folded(Bfloat16 a, Bfloat16 b, Sum) { return Bfloat16(float(a) + float(b)); }
inline Complex<double> folded(Complex<double> a, Complex<double> b, Prod) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

struct Triple {
    int x, y, z;
};
struct TripleSum : Operator {
    static Triple combine(Triple a, Triple b) { return {sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z)}; }
};
inline Triple made(u64 word, Triple) { return {int(word), int(word >> 16), int(word >> 32)}; }
inline Triple folded(Triple a, Triple b, TripleSum) { return TripleSum::combine(a, b); }

template <class T, class Op>
struct Reduction {
    Call& call;
    u64 count, grid;  // elements of the vector, or of a block of it
    Buffer send, recv;

    // `parts`: blocks of `count` elements that a rank sends; `outputs`: that its recvbuf has.
    Reduction(Call& call, u64 count, u64 grid, u64 parts, u64 outputs)
        : call(call), count(count), grid(grid), send(parts * count * sizeof(T), misalignment()),
          recv(outputs * count * sizeof(T), misalignment()) {}

    u32 misalignment() { return call.own.one_in(2) ? 0 : u32(call.own.below(4) * alignof(T)); }

    static T contribution(const Call& call, int rank, u64 element) {
        return made(mix(call.label() + rank, element), T());
    }

    void fill(const Buffer& buffer, u64 elements) {
        for (u64 i = 0; i < elements; ++i) put(buffer, i, contribution(call, call.team.rank, i));
    }

    static void put(const Buffer& buffer, u64 i, T value) { memcpy(buffer.as() + i * sizeof(T), &value, sizeof value); }

    ReduceArgs args(const Buffer& from, const Buffer& to, int root) {
        if (&from == &to) call.team.send = call.team.recv;  // one array is in one window
        return ReduceArgs{call.team, from.as(), to.as(), count * sizeof(T), root};
    }

    // `output` must begin with elements first, first + 1 … of the fold over all ranks, or those below `end`.
    void check(const Buffer& output, u64 first, int end = kMaxRanks) {
        for (u64 i = 0; i < count; ++i) {
            T expected = contribution(call, 0, first + i);
            for (int rank = 1; rank < std::min(end, call.size()); ++rank)
                expected = folded(expected, contribution(call, rank, first + i), Op());
            if (memcmp(output.as() + i * sizeof(T), &expected, sizeof expected) != 0)
                return call.wrong("result", first / count, i, "%s instead of %s",
                                  hex(output.as() + i * sizeof(T)).c_str(),
                                  hex(reinterpret_cast<const char*>(&expected)).c_str());
        }
        if (!output.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
    }

    void check_untouched(const Buffer& output) {
        for (u64 i = 0; i < output.nbytes; ++i)
            if (output[i] != Buffer::kPoison) return call.wrong("unused recvbuf", 0, i, "was written");
    }

    static std::string hex(const char* value) {
        std::string text;
        char digits[3];
        for (u64 i = sizeof(T); i-- > 0;) {
            snprintf(digits, sizeof digits, "%02x", u8(value[i]));
            text += digits;
        }
        return text;
    }

  private:
    typedef unsigned char u8;
};

// How many elements: few, as many as go as packets, or several tiles of chunks (ring places are used again).
template <class T>
u64 packet_count(Call& call) {
    const u64 limit = u64(call.team.channels) * call.team.slot_packets * kPacketNbytes / sizeof(T);
    if (call.draw.one_in(3)) return limit - call.draw.below(2);
    return call.draw.below(call.draw.one_in(4) ? 2 : limit);
}
template <class T>
u64 chunk_count(Call& call, u64 grid, u64 shards) {
    const u64 tile = grid * shards * call.team.chunk_nbytes / sizeof(T);
    if (call.draw.one_in(6)) return call.draw.below(3);
    return call.draw.of({tile, 4 * tile, 6 * tile}) + call.draw.below(5) - call.draw.below(3);
}

// What fits so many rows of a slot for lines, but for what parts are rounded up by.
inline u64 fitting_rows(u32 rows) { return rows > 0 ? rows * kRowPacks * kPackNbytes - 32 : 0; }
inline u64 lines_of(const Call& call) { return fitting_rows(call.team.slot_rows); }
inline u64 half_of_lines(const Call& call) { return fitting_rows(call.team.slot_rows / 2); }

// The same for kernels that send packets or lines, of which a channel can move `each` bytes.
template <class T>
u64 short_count(Call& call, u64 each) {
    const u64 most = each * call.team.channels / sizeof(T);
    return call.draw.one_in(3) ? most - std::min(most, u64(call.draw.below(2))) : std::min(packet_count<T>(call), most);
}

struct Kind {
    const char* name;
    void (*kernel)(ReduceArgs);
    u64 each;  // bytes that a channel can move as packets; 0: chunks
};

// One of three kinds, but the second only where slots are large enough for it.
inline const Kind& any_of(Call& call, const Kind (&kinds)[3]) {
    return kinds[kinds[1].each > 64 ? call.draw.below(3) : 2 * call.draw.below(2)];
}

template <class T, class Op>
void allreduce(Call& call) {
    const u64 slot = (call.team.slot_packets - 2) * kPacketNbytes;
    const Kind kinds[] = {{"allreduce_one_shot", allreduce_one_shot<T, Op>, slot},
                          {"allreduce_two_shot_lines", allreduce_two_shot_lines<T, Op>, half_of_lines(call) * call.size()},
                          {"allreduce_two_shot", allreduce_two_shot<T, Op>, 0}};
    const Kind& kind = any_of(call, kinds);
    call.name = kind.name;
    u64 grid = call.draw.between(1, call.team.channels);
    u64 count = chunk_count<T>(call, grid, call.size());
    if (kind.each != 0) {
        count = short_count<T>(call, kind.each);
        grid = call.grid(count * sizeof(T), kind.each);
    }
    Reduction<T, Op> reduction(call, count, grid, 1, 1);
    const Buffer& send = call.draw.one_in(3) ? reduction.recv : reduction.send;
    reduction.fill(send, count);
    call.run(kind.kernel, reduction.args(send, reduction.recv, 0), u32(grid));
    reduction.check(reduction.recv, 0);
}

template <class T, class Op>
void reduce(Call& call) {
    const u64 slot = (call.team.slot_packets - 2) * kPacketNbytes;
    const Kind kinds[] = {{"reduce_one_shot", reduce_one_shot<T, Op>, slot},
                          {"reduce_two_shot_lines", reduce_two_shot_lines<T, Op>, lines_of(call) * (call.size() - 1)},
                          {"reduce_two_shot", call.size() == 2 ? reduce_two_shot_to_root<T, Op> : reduce_two_shot<T, Op>, 0}};
    const Kind pieces{"reduce_chain", reduce_chain<T, Op>, 0}, lines{"reduce_chain_lines", reduce_chain_lines<T, Op>, 0};
    const bool chained = call.draw.one_in(3), as_lines = call.team.slot_rows >= kBatchRows && call.draw.one_in(2);
    const Kind& kind = !chained ? any_of(call, kinds) : as_lines ? lines : pieces;
    call.name = kind.name;
    const int last = call.size() - 1, any = int(call.draw.below(call.size()));
    const int root = chained && any > 1 ? last : any;  // others can end no chain
    u64 grid = call.draw.between(1, call.team.channels);
    u64 count = chunk_count<T>(call, grid, call.size()) + (&kind == &lines ? call.several_strips(grid) / sizeof(T) : 0);
    if (kind.each != 0) {
        count = short_count<T>(call, kind.each);
        grid = call.grid(count * sizeof(T), kind.each);
    }
    const bool is_root = call.team.rank == root, in_place = call.draw.one_in(3);
    Reduction<T, Op> reduction(call, count, grid, 1, 1);
    const Buffer& send = is_root && in_place ? reduction.recv : reduction.send;
    reduction.fill(send, count);
    call.run(kind.kernel, reduction.args(send, reduction.recv, root), u32(grid));
    if (is_root) reduction.check(reduction.recv, 0);
    else reduction.check_untouched(reduction.recv);
}

template <class T, class Op>
void reduce_scatter_block(Call& call) {
    const u64 lines = u64(call.team.slot_rows) * kRowPacks * kPackNbytes;
    const Kind kinds[] = {
        {"reduce_scatter_block_one_shot", reduce_scatter_block_one_shot<T, Op>, call.team.slot_packets * kPacketNbytes},
        {"reduce_scatter_block_one_shot_lines", reduce_scatter_block_one_shot_lines<T, Op>, lines > 64 ? lines - 16 : 0},
        {"reduce_scatter_block_two_shot", reduce_scatter_block_two_shot<T, Op>, 0}};
    const Kind& kind = any_of(call, kinds);
    const bool in_place = call.draw.one_in(3);
    call.name = kind.name;
    u64 grid = call.draw.between(1, call.team.channels), count = chunk_count<T>(call, grid, 1);
    if (kind.each != 0) {
        count = short_count<T>(call, kind.each);
        grid = call.grid(count * sizeof(T), kind.each);
    } else if (in_place && call.draw.one_in(2)) {
        count += kTiledChunks * grid * call.team.chunk_nbytes / sizeof(T);
    }
    Reduction<T, Op> reduction(call, count, grid, call.size(), in_place ? call.size() : 1);
    const Buffer& send = in_place ? reduction.recv : reduction.send;
    reduction.fill(send, count * call.size());
    call.run(kind.kernel, reduction.args(send, reduction.recv, 0), u32(grid));
    reduction.check(reduction.recv, count * call.team.rank);
}

inline void allreduce_records(Call& call) {
    constexpr u64 kNbytes = kGroupNbytes<Triple>;
    const bool one_shot = call.draw.one_in(2), in_place = call.draw.one_in(3);
    call.name = one_shot ? "allreduce_records_one_shot" : "allreduce_records_two_shot";
    const u64 slot = call.team.slot_packets * kPacketNbytes / kNbytes * kNbytes, limit = slot * call.team.channels;
    const u32 chunk = call.team.chunk_nbytes;
    call.team.chunk_nbytes = u32(chunk / kNbytes * kNbytes);  // whole groups
    u64 grid = call.draw.between(1, call.team.channels);
    const u64 count = one_shot ? call.draw.below(limit / sizeof(Triple) + 1) : chunk_count<Triple>(call, grid, call.size());
    if (one_shot) grid = call.grid(count * sizeof(Triple), slot);
    Reduction<Triple, TripleSum> reduction(call, count, grid, 1, 1);
    const Buffer& send = in_place ? reduction.recv : reduction.send;
    reduction.fill(send, count);
    const auto kernel = one_shot ? allreduce_records_one_shot<Triple, TripleSum> : allreduce_records_two_shot<Triple, TripleSum>;
    call.run(kernel, reduction.args(send, reduction.recv, 0), u32(grid));
    call.team.chunk_nbytes = chunk;
    reduction.check(reduction.recv, 0);
}
