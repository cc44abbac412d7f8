// Alltoallv of segments: parts of a buffer go to any ranks, into slots or to where they were.
#pragma once
#include "moves.h"

constexpr int kMostSegments = 9;

// What every rank knows of one call.
struct Split {
    Call& call;
    const bool in_place;  // kSender, else kSlots
    const int segments;
    const i64 row_nbytes;
    i64 lengths[kMaxRanks][kMostSegments], capacity = 0;
    bool goes[kMaxRanks][kMaxRanks][kMostSegments];  // [source][target]

    explicit Split(Call& call)
        : call(call), in_place(call.draw.one_in(2)), segments(int(call.draw.between(1, kMostSegments))),
          row_nbytes(call.draw.of({1, 12, 16})) {
        const i64 chunk = 2 * call.team.chunk_nbytes / row_nbytes, longest = call.draw.of({i64(1), i64(5), chunk, 3 * chunk});
        for (int source = 0; source < call.size(); ++source) {
            for (int i = 0; i < segments; ++i) lengths[source][i] = i64(call.draw.below(u64(longest + 1)));
            for (int target = 0; target < call.size(); ++target)
                for (int i = 0; i < segments; ++i) goes[source][target][i] = call.draw.one_in(2);
            capacity = std::max(capacity, begin(source, segments));
        }
        if (call.draw.one_in(3)) capacity = i64(call.draw.below(u64(capacity + 1)));  // less than some need
    }

    i64 begin(int source, int segment) const {
        i64 rows = 0;
        for (int i = 0; i < segment; ++i) rows += lengths[source][i];
        return rows;
    }
};

struct SegmentsCall {
    Call& call;
    const Split& split;
    const int me;
    const Buffer send, recv;
    i64 sent[kMaxRanks], ids[kMaxRanks * kMostSegments], status[kMaxRanks], all_lengths[kMaxRanks * kMostSegments];
    u64 words[kWays][kMaxRanks * kMostSegments], ends[kWays][kMaxRanks * kMostSegments];
    i64 own_begins[kMostSegments], begins[kMaxRanks * kMostSegments], ranges[2 * kMaxRanks], ids_count = 0;

    SegmentsCall(Call& call, const Split& split)
        : call(call), split(split), me(call.team.rank), send(u64(split.begin(me, split.segments) * split.row_nbytes)),
          recv(u64(call.size() * split.capacity * split.row_nbytes), any_alignment(call)) {
        fill(call, send.as(), send.nbytes, me, kAll);
        for (int target = 0; target < call.size(); ++target) {
            sent[target] = -ids_count;
            for (int i = split.segments - 1; i >= 0; --i)
                if (split.goes[me][target][i]) ids[ids_count++] = i;
            sent[target] += ids_count;
        }
    }

    void run() {
        SegmentsArgs args{};
        args.rows.team = call.team;
        args.rows.send = send.as();
        args.rows.recv = recv.as();
        args.rows.row_nbytes = split.row_nbytes;
        args.rows.send_rows = split.begin(me, split.segments);
        args.rows.capacity = args.rows.slot_rows = split.capacity;
        args.rows.placement = split.in_place ? kSender : kSlots;
        args.rows.drop = 1;
        args.rows.send_counts = sent;
        args.rows.status = status;
        args.lengths = split.lengths[me];
        args.ids = ids;
        args.all_lengths = all_lengths;
        args.segments = split.segments;
        args.ids_count = ids_count;
        args.begins[kOut] = own_begins;
        args.begins[kIn] = begins;
        args.ranges = ranges;
        for (int way : {kOut, kIn}) {
            args.words[way] = words[way];
            args.ends[way] = ends[way];
        }
        const SegmentsArgs moved = args;
        args.rows.team.send = args.rows.team.recv = Place{0, nullptr};  // what is exchanged first is in no window
        call.run(list_segments, args, 1);
        call.run(move_segments, moved, call.team.channels);
    }

    void check_rows() {
        std::vector<bool> written(recv.nbytes, false);
        for (int source = 0; source < call.size(); ++source) {
            i64 next = 0, lost = 0;
            for (int i = 0; i < split.segments; ++i) {
                const i64 rows = split.lengths[source][i], from = split.begin(source, i);
                if (all_lengths[source * split.segments + i] != rows) return call.wrong("length", u64(source), u64(i), "of all");
                if (!split.goes[source][me][i]) continue;
                const i64 to = split.in_place ? from : next, kept = std::max(i64(0), std::min(rows, split.capacity - to));
                const u64 begin = u64((source * split.capacity + to) * split.row_nbytes);
                for (u64 b = 0; b < u64(kept * split.row_nbytes); ++b) {
                    const char expected = byte_of(call, source, kAll, u64(from * split.row_nbytes) + b);
                    if (recv.as()[begin + b] != expected) return call.wrong("byte", u64(source), b, "of segment %d", i);
                    written[begin + b] = true;
                }
                next += rows;
                lost += rows - kept;
            }
            if (status[source] != lost) return call.wrong("status", u64(source), 0, "%lld instead of %lld", status[source], lost);
        }
        for (u64 i = 0; i < recv.nbytes; ++i)
            if (!written[i] && recv[i] != Buffer::kPoison) return call.wrong("bytes that nobody sent", 0, i, "were written");
        if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
    }
};

inline void alltoallv_segments(Call& call) {
    call.name = "alltoallv segments";
    const Split split(call);
    SegmentsCall mine(call, split);
    mine.run();
    mine.check_rows();
}
