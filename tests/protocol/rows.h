// Alltoallv in its five placements, with random counts, capacities, displacements and outputs.
#pragma once
#include "moves.h"

// What every rank has of one call: who sends how many rows to whom.
struct Traffic {
    Call& call;
    const Placement placement;
    const i64 row_nbytes;
    i64 counts[kMaxRanks][kMaxRanks];  // [source][target]
    i64 capacity;                      // of recvbuf or of a slot, in rows

    explicit Traffic(Call& call)
        : call(call), placement(call.draw.of({kPacked, kSlots, kFixed, kSender, kPlaced})), row_nbytes(call.draw.of({1, 4, 12, 16, 40})) {
        const i64 slot = call.team.slot_packets * kPacketNbytes / row_nbytes;
        const i64 chunk = 2 * call.team.chunk_nbytes / row_nbytes, slots = call.team.channels * (slot + 2);
        i64 largest = 0;
        for (int source = 0; source < call.size(); ++source)
            for (int target = 0; target < call.size(); ++target) {
                const i64 count = i64(call.draw.below(u64(call.draw.of({i64(1), i64(4), slot + 2, slots, chunk * 6}))));
                counts[source][target] = count;
                largest = std::max(largest, count);
            }
        capacity = placement == kSlots || placement == kFixed ? largest : i64(call.size()) * largest;
        if (call.draw.one_in(3)) capacity = i64(call.draw.below(u64(capacity + 1)));  // less than arrives, on some rank
    }

    i64 sent_rows(int source) const {
        return sum(call.size(), [&](int target) { return counts[source][target]; });
    }

    // Of the rows from `source` to `target`: how many are stored, and where the first belongs.
    i64 kept(int source, int target) const {
        const i64 taken = displ(source, target) - (in_slots() ? source * capacity : 0);
        return std::max(i64(0), std::min(counts[source][target], capacity - taken));
    }
    i64 displ(int source, int target) const {
        if (placement == kPacked) return sum(source, [&](int before) { return kept(before, target); });
        if (placement == kPlaced) return after(source, [&](int other) { return counts[other][target]; });
        if (placement != kSender || counts[source][target] == 0) return source * capacity;
        return source * capacity + after(target, [&](int other) { return counts[source][other]; });
    }
    bool in_slots() const { return placement != kPacked && placement != kPlaced; }
    i64 room() const { return in_slots() ? call.size() * capacity : capacity; }

  private:
    template <class Rows>
    i64 after(int begin, Rows rows) const {
        return sum(call.size() - begin - 1, [&](int i) { return rows(begin + 1 + i); });
    }
    template <class Rows>
    static i64 sum(int end, Rows rows) {
        i64 total = 0;
        for (int i = 0; i < end; ++i) total += rows(i);
        return total;
    }
};

// The arguments and buffers of one rank.
struct Alltoallv {
    Call& call;
    const Traffic& traffic;
    const int me;
    const Buffer send, recv;
    i64 counts[kMaxRanks], displs[kMaxRanks];
    i64 got_counts[kMaxRanks], got_displs[kMaxRanks], status[kMaxRanks], total = -1;
    const bool given_displs, wants_counts, wants_status;

    Alltoallv(Call& call, const Traffic& traffic)
        : call(call), traffic(traffic), me(call.team.rank),
          send(u64(traffic.sent_rows(me) * traffic.row_nbytes), any_alignment(call)),
          recv(u64(traffic.room() * traffic.row_nbytes), any_alignment(call)),
          given_displs(traffic.placement == kSender || call.own.one_in(2)), wants_counts(call.own.one_in(2)), wants_status(call.own.one_in(2)) {
        i64 displ = 0;
        for (int j = 0; j < call.size(); ++j) {  // with displacements the rows for the last rank come first
            const int target = given_displs || traffic.placement == kFixed ? call.size() - 1 - j : j;
            counts[target] = traffic.counts[me][target];
            displs[target] = displ;
            fill(call, send.as() + displ * traffic.row_nbytes, u64(counts[target] * traffic.row_nbytes), me, target);
            displ += counts[target];
        }
    }

    AlltoallvArgs args() {
        AlltoallvArgs args{};
        args.team = call.team;
        args.send = send.as();
        args.recv = recv.as();
        args.row_nbytes = traffic.row_nbytes;
        args.send_rows = traffic.sent_rows(me);
        args.placement = traffic.placement;
        if (traffic.placement == kFixed) {
            for (int rank = 0; rank < call.size(); ++rank) {
                const i64 fixed[] = {counts[rank], displs[rank], traffic.capacity, traffic.displ(rank, me)};
                for (int kind = 0; kind < 4; ++kind) args.fixed[kind][rank] = fixed[kind];
            }
            return args;
        }
        args.capacity = args.slot_rows = traffic.capacity;
        args.drop = wants_status;
        args.send_counts = counts;
        args.send_displs = given_displs ? displs : nullptr;
        args.recv_counts = wants_counts ? got_counts : nullptr;
        args.recv_displs = wants_counts || traffic.placement == kPlaced ? got_displs : nullptr;
        for (int rank = 0; rank < call.size(); ++rank)  // what kPlaced reads, and others are to replace
            got_displs[rank] = traffic.placement == kPlaced ? traffic.displ(rank, me) : -1;
        args.total = wants_counts ? &total : nullptr;
        args.status = wants_status ? status : nullptr;
        return args;
    }

    void check_rows() {
        std::vector<bool> written(recv.nbytes, false);
        for (int source = 0; source < call.size(); ++source) {
            const u64 begin = u64(traffic.displ(source, me) * traffic.row_nbytes);
            const u64 nbytes = u64(traffic.kept(source, me) * traffic.row_nbytes);
            if (nbytes == 0) continue;
            if (!check(call, recv.as() + begin, nbytes, source, me)) return;
            std::fill(written.begin() + i64(begin), written.begin() + i64(begin + nbytes), true);
        }
        for (u64 i = 0; i < recv.nbytes; ++i)
            if (!written[i] && recv[i] != Buffer::kPoison)
                return call.wrong("bytes that nobody sent", 0, i, "were written");
        if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
    }

    void expect(const char* what, int source, i64 value, i64 expected) {
        if (value != expected) call.wrong(what, u64(source), 0, "%lld instead of %lld", value, expected);
    }

    void check_outputs() {
        const bool dynamic = traffic.placement != kFixed;
        i64 sum = 0, cut = 0;
        for (int source = 0; source < call.size(); ++source) {
            const i64 kept = traffic.kept(source, me), lost = traffic.counts[source][me] - kept;
            if (dynamic && wants_counts) expect("recv_counts", source, got_counts[source], kept);
            if (dynamic && wants_counts) expect("recv_displs", source, got_displs[source], traffic.displ(source, me));
            if (dynamic && wants_status) expect("status", source, status[source], lost);
            sum += kept;
            cut += lost;
        }
        if (dynamic && wants_counts) expect("total", 0, total, sum);
        const bool recorded = cut != 0 && !(dynamic && wants_status);
        expect("overflow record", 0, i64(call.team.watch->overflow), recorded ? i64(dynamic ? kCut : kTruncated) : 0);
        call.team.watch->overflow = 0;  // as the host does when it has raised the error
        lease_header(call.team)->overflow = 0;
    }
};

inline void alltoallv(Call& call) {
    const Traffic traffic(call);
    const char* names[] = {"alltoallv packed", "alltoallv slots", "alltoallv fixed", "alltoallv sender", "alltoallv placed"};
    call.name = names[traffic.placement];
    Alltoallv mine(call, traffic);
    call.run(alltoallv, mine.args(), u32(call.draw.between(1, call.team.channels)));
    mine.check_rows();
    mine.check_outputs();
}
