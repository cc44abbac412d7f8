// Alltoallv of segments: parts of a buffer go to any ranks, in four placements, with random room and all outputs.
#pragma once
#include "moves.h"

constexpr int kMostSegments = 40;  // more than a warp has lanes

// What every rank has of one call.
struct Split {
    Call& call;
    const Placement placement;
    const int segments;
    const i64 row_nbytes;
    i64 lengths[kMaxRanks][kMostSegments], capacity = 0;  // of recvbuf or of a slot, in rows
    bool goes[kMaxRanks][kMaxRanks][kMostSegments];  // [source][target]

    explicit Split(Call& call)
        : call(call), placement(call.draw.of({kSender, kSlots, kPacked, kPlaced})),
          segments(int(call.draw.one_in(4) ? kMostSegments : call.draw.between(1, 9))), row_nbytes(call.draw.of({1, 12, 16})) {
        const i64 chunk = 2 * call.team.chunk_nbytes / row_nbytes, longest = call.draw.of({i64(1), i64(5), chunk, 3 * chunk});
        for (int source = 0; source < call.size(); ++source)
            for (int i = 0; i < segments; ++i) lengths[source][i] = i64(call.draw.below(u64(longest + 1)));
        for (auto& of_source : goes)
            for (auto& to_target : of_source)
                for (bool& one : to_target) one = call.draw.one_in(2);
        for (int rank = 0; rank < call.size(); ++rank)
            capacity = std::max(capacity, in_slots() ? begin(rank, segments) : sent_to(rank, 0));
        if (call.draw.one_in(3)) capacity = i64(call.draw.below(u64(capacity + 1)));  // less than some need
    }

    bool in_slots() const { return placement == kSlots || placement == kSender; }
    i64 begin(int source, int segment) const {
        i64 rows = 0;
        for (int i = 0; i < segment; ++i) rows += lengths[source][i];
        return rows;
    }
    i64 sent(int source, int target) const {
        i64 rows = 0;
        for (int i = 0; i < segments; ++i) rows += goes[source][target][i] ? lengths[source][i] : 0;
        return rows;
    }
    i64 sent_to(int target, int first) const {  // by source `first` and those after it
        return first == call.size() ? 0 : sent(first, target) + sent_to(target, first + 1);
    }

    // Where the rows from `source` begin in the recvbuf of `target`, and where their room ends.
    i64 displ(int source, int target) const {
        if (in_slots()) return source * capacity;
        if (placement == kPlaced) return sent_to(target, source + 1);  // the last source's first
        return source == 0 ? 0 : std::min(capacity, displ(source - 1, target) + sent(source - 1, target));
    }
    i64 end(int source, int target) const {
        const i64 first = displ(source, target);
        return in_slots() ? first + capacity : std::max(first, std::min(capacity, first + sent(source, target)));
    }
};

struct SegmentsCall {
    Call& call;
    const Split& split;
    const int me;
    const Buffer send, recv;
    i64 counts[kMaxRanks], displs[kMaxRanks], total = -1;
    i64 sent[kMaxRanks], ids[kMaxRanks * kMostSegments], status[kMaxRanks], all_lengths[kMaxRanks * kMostSegments];
    u64 words[kWays][kMaxRanks * kMostSegments], ends[kWays][kMaxRanks * kMostSegments];
    i64 own_begins[kMostSegments], begins[kMaxRanks * kMostSegments], ranges[2 * kMaxRanks], ids_count = 0;

    SegmentsCall(Call& call, const Split& split)
        : call(call), split(split), me(call.team.rank), send(u64(split.begin(me, split.segments) * split.row_nbytes)),
          recv(u64((split.in_slots() ? call.size() : 1) * split.capacity * split.row_nbytes), any_alignment(call)) {
        fill(call, send.as(), send.nbytes, me, kAll);
        for (int target = 0; target < call.size(); ++target) {
            displs[target] = split.placement == kPlaced ? split.displ(target, me) : -1;
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
        args.rows.placement = split.placement;
        args.rows.drop = 1;
        args.rows.send_counts = sent;
        args.rows.recv_counts = counts;
        args.rows.recv_displs = displs;
        args.rows.total = &total;
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
        call.run(list_segments<>, args, 1);
        call.run(move_segments<>, moved, call.team.channels);
    }

    void check_rows() {
        std::vector<bool> written(recv.nbytes, false);
        i64 kept_of_all = 0;
        for (int source = 0; source < call.size(); ++source) {
            const i64 first = split.displ(source, me), end = split.end(source, me);
            i64 next = first, kept_of_source = 0;
            for (int i = 0; i < split.segments; ++i) {
                const i64 rows = split.lengths[source][i], from = split.begin(source, i);
                if (all_lengths[source * split.segments + i] != rows) return call.wrong("length", u64(source), u64(i), "of all");
                if (!split.goes[source][me][i]) continue;
                const i64 to = split.placement == kSender ? first + from : next, kept = std::max(i64(0), std::min(rows, end - to));
                const u64 begin = u64(to * split.row_nbytes);
                for (u64 b = 0; b < u64(kept * split.row_nbytes); ++b) {
                    const char expected = byte_of(call, source, kAll, u64(from * split.row_nbytes) + b);
                    if (recv.as()[begin + b] != expected) return call.wrong("byte", u64(source), b, "of segment %d", i);
                    written[begin + b] = true;
                }
                next += rows;
                kept_of_source += kept;
            }
            expect("count", source, counts[source], kept_of_source);
            expect("status", source, status[source], split.sent(source, me) - kept_of_source);
            expect("displ", source, displs[source], first);
            kept_of_all += kept_of_source;
        }
        expect("total", 0, total, kept_of_all);
        for (u64 i = 0; i < recv.nbytes; ++i)
            if (!written[i] && recv[i] != Buffer::kPoison) return call.wrong("bytes that nobody sent", 0, i, "were written");
        if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
    }

    void expect(const char* what, int source, i64 value, i64 expected) {
        if (value != expected) call.wrong(what, u64(source), 0, "%lld instead of %lld", value, expected);
    }
};

inline void alltoallv_segments(Call& call) {
    call.name = "alltoallv segments";
    const Split split(call);
    SegmentsCall mine(call, split);
    mine.run();
    mine.check_rows();
}
