// Chains of lines: messages, or partial results, go from rank to rank as in chain.cuh. They go as rows of lines, which need no
// fence and no signal.
//
// Each rank stores its rows in a slot of the next rank. The slot is divided into *circles*, one or several for each warp. A
// circle has places for some *batches* of rows, and its warp uses them in turn. Warps never meet. For each batch a warp
//   1. waits until the next rank has taken the batch that was in the same place one lap ago;
//   2. loads its own rank's rows, if there are any;
//   3. polls for the previous rank's rows. It joins each row that has come with its own, and stores the result at the next
//      rank at once;
//   4. signals to the previous rank that the batch is taken.
// The last rank stores results to recvbuf, or sends them to root in the same way. Then root begins the chain, and stores
// results `places` batches behind those that it sends. All slots together hold more, so root never waits for itself.
//
// Multiprocessors do not get equal shares of a link, so equal parts would not end together. Therefore the message is cut into
// *strips* of some batches. Each circle begins with a fixed strip, the only one in a short message. At the end of a strip the
// first rank gets the next number from its counter (LeaseHeader::strips). It sends it to the next rank, which forwards it.
//
// Flags of lines have the epoch, and the lap added to the hash, so a row is not taken for that of another lap. Counts of
// taken batches and numbers of strips are words in packet slots, with the epoch above them. A rank has a slot for each rank
// that writes to it. Slots of lines and packets alternate by the epoch's parity: when a rank writes to one, its owner has
// entered the previous operation. A rank that has sent a row has entered this one. Each rank waits for all words that are
// written to it in the same operation.
//
// A warp may have several circles. All ranks go through them in the same order, batch by batch, so the first batch that is not
// yet done somewhere never waits for another.
// Thresholds were measured on 4 H200 with 8 to 128 MB (docs/design_notes.md, "A chain of lines gives its strips …").
#pragma once
#include "protocol/chain.cuh"
#include "protocol/line.cuh"

constexpr u32 kBatchRows = 4;  // CHAIN_ROWS of pyncclx/collectives/algorithms.py
constexpr u32 kMostCircles = kMaxThreads / 32;
constexpr u32 kFixedBatches = 8;  // of a circle: with no more it has one strip
constexpr u32 kStripBatches = 2;
constexpr u32 kStripWords = 4;  // a circle's words for numbers of strips, which it uses in turn
constexpr u32 kNoStrip = 0xffffffff;

// A circle's way through the message. Strips have numbers from 1 on.
struct Walk {
    u32 strip, strips_done, sent;  // the strip's number, strips before it, batches sent to the next rank
};

// A batch of one circle and round.
struct Batch {
    u32 circle, round, place, lap;
    u32 of_strip, number;  // the batch's number in its strip, and in the message

    __device__ u32 row() const { return number * kBatchRows; }
};

// What a rank has to do with the message.
struct ChainEnds {
    const char* send;  // a rank's own rows, or those that the first rank sends
    char* recv;
    u64 nbytes;
    Hop hop;
    int last;      // the rank where the chain ends
    bool returns;  // this rank begins the chain, and receives the result from `last`
};

// Join::kHasOwn: ranks join what came with rows of their own, join(came, own). Otherwise each keeps what came.
template <class Join>
struct LineChain : ChainEnds {
    Channel& channel;
    Lines lines;
    const Join join;
    const u64 packs;  // sizes of the message
    const u32 rows, batches;
    const u32 whole_batches;  // batches of whole packs at multiples of 16
    const u32 circles, strip_batches, places;
    const bool is_fixed;     // no circle has more than one strip
    const bool looks_ahead;  // this warp has one circle:
    u64 taken = 0;           // its word, as it was when the batch before was passed
    bool has_come = false;   // a batch, to this warp

    __device__ LineChain(Channel& channel, const ChainEnds& ends, Join join)
        : ChainEnds(ends), channel(channel), lines(channel), join(join), packs(packs_in(nbytes)), rows(rows_in(nbytes)),
          batches((rows + kBatchRows - 1) / kBatchRows), whole_batches(find_whole()), circles(find_circles()),
          strip_batches(find_strip()), places(find_places()), is_fixed(strips() <= circles * gridDim.x),
          looks_ahead(circles <= blockDim.x / 32) {}

    // All threads. True if nothing failed and data of every peer came (Channel::leave).
    __device__ bool run() {
        __shared__ Walk walks[2][kMostCircles];  // with data, and with results that come back
        if (!channel.await_slots()) return false;
        const u32 warps = (blockDim.x + 31) / 32, begin = threadIdx.x / 32, behind = returns ? places : 0;
        for (u32 circle = begin; circle < circles; circle += warps)
            if (lines.lane < 2) walks[lines.lane][circle] = Walk{first_strip(circle), 0, 0};
        __syncwarp();
        Batch batch{0, 0, 0, 0, 0, 0};
        for (bool goes_on = true; goes_on; ++batch.round) {
            goes_on = false;
            for (batch.circle = begin; batch.circle < circles; batch.circle += warps) {
                Walk &walk = walks[0][batch.circle], &back = walks[1][batch.circle];
                if (!step(walk, batch, false)) return false;
                if (returns && batch.round >= behind && !step(back, before(batch), true)) return false;
                goes_on = goes_on || walk.strip != kNoStrip || (returns && back.strip != kNoStrip);
            }
            if (++batch.place == places) batch.place = 0, ++batch.lap;
        }
        __syncwarp();
        for (u32 circle = begin; circle < circles; circle += warps)
            if (hop.to != kNoRank && !is_fixed && !await_taken(circle, walks[0][circle].sent)) return false;
        return has_come && (returns || is_last());
    }

    // After `leave` of the channel. The last block resets the counter. One word counts strips and blocks, so it has one order.
    __device__ void leave() const {
        u64* counted = &lease_header(channel.team)->strips;
        if (threadIdx.x == 0 && atomic_add_gpu(counted, u64(1) << 32) >> 32 == gridDim.x - 1) st_relaxed_sys(counted, u64(0));
    }

  private:
    static constexpr u32 kWarp = 0xffffffffu;

    __device__ int me() const { return channel.team.rank; }
    __device__ bool is_last() const { return me() == last; }
    __device__ bool keeps() const { return !Join::kHasOwn && hop.from != kNoRank; }

    __device__ u32 find_whole() const {
        const u64 from = Join::kHasOwn || hop.from == kNoRank ? u64(send) : 0;
        const u64 to = keeps() || hop.to == kNoRank || returns ? u64(recv) : 0;
        if ((from | to) % kPackNbytes != 0) return 0;
        return nbytes % kPackNbytes == 0 ? batches : u32(nbytes / (kBatchRows * kRowPacks * kPackNbytes));
    }

    // As many as have two places each, and words in a slot of packets.
    __device__ u32 find_circles() const {
        const u64 fit = smaller(channel.team.slot_rows / (2 * kBatchRows), channel.team.slot_packets / kStripWords);
        return u32(smaller(fit == 0 ? 1 : fit, kMostCircles));
    }

    __device__ u32 find_strip() const {
        const u32 each = (batches + circles * gridDim.x - 1) / (circles * gridDim.x);
        return each > kFixedBatches ? kStripBatches : each == 0 ? 1 : each;
    }

    // No more than kStripWords - 1 strips have, so a word is read before it is written again.
    __device__ u32 find_places() const {
        return u32(smaller(channel.team.slot_rows / circles / kBatchRows, (kStripWords - 1) * strip_batches));
    }

    __device__ u32 strips() const { return (batches + strip_batches - 1) / strip_batches; }
    __device__ u32 numbered(u32 strip) const { return strip < strips() ? strip + 1 : kNoStrip; }
    __device__ u32 first_strip(u32 circle) const { return numbered(blockIdx.x * circles + circle); }

    // The batch of the same circle one lap ago.
    __device__ Batch before(const Batch& b) const { return Batch{b.circle, b.round - places, b.place, b.lap - 1, 0, 0}; }

    __device__ u32 slot_row(const Batch& batch) const { return (batch.circle * places + batch.place) * kBatchRows; }
    __device__ u32 rows_of(const Batch& batch) const { return u32(smaller(rows - batch.row(), kBatchRows)); }
    __device__ bool is_whole(const Batch& batch) const { return batch.number < whole_batches; }

    // The next batch of a circle: passed on, or `collects`, the result that comes back. False: leave.
    __device__ bool step(Walk& walk, Batch batch, bool collects) {
        if (walk.strip == kNoStrip) return true;
        batch.of_strip = batch.round - walk.strips_done * strip_batches;
        batch.number = (walk.strip - 1) * strip_batches + batch.of_strip;
        if (batch.number < batches && !(collects ? collect(batch) : pass(walk, batch))) return false;
        if (batch.of_strip + 1 < strip_batches) return true;
        return collects ? next_strip(walk, batch.circle, last, kNoRank) : next_strip(walk, batch.circle, hop.from, hop.to);
    }

    // Gets the number of the circle's next strip, from the previous rank or from this rank's counter, and forwards it.
    __device__ bool next_strip(Walk& walk, u32 circle, int from, int to) {
        u32 next = kNoStrip;
        if (is_fixed) to = kNoRank;
        else if (from == kNoRank) next = take_strip();
        else if (!await_word(strip_word(me(), from, circle, walk.strips_done), from, walk.strip + 1, next)) return false;
        if (to != kNoRank && lines.lane == 0) st_relaxed_sys(strip_word(to, me(), circle, walk.strips_done), channel.mark(next));
        __syncwarp();
        if (lines.lane == 0) walk.strip = next, ++walk.strips_done;
        __syncwarp();
        return true;
    }

    __device__ u32 take_strip() const {
        u32 counted = 0;
        if (lines.lane == 0) counted = u32(atomic_add_gpu(&lease_header(channel.team)->strips, u64(1)));
        return numbered(gridDim.x * circles + __shfl_sync(kWarp, counted, 0));
    }

    __device__ bool pass(Walk& walk, const Batch& batch) {
        if (hop.to != kNoRank && !has_place(batch)) return false;
        lines.lap = batch.lap;
        bool ok = true;
        if (is_whole(batch)) ok = pass_rows<true, kBatchRows>(batch, 0);
        else
            for (u32 r = 0; ok && r < rows_of(batch); ++r) ok = pass_rows<false, 1>(batch, r);
        if (ok && hop.from != kNoRank) tell_taken(hop.from, batch);
        if (lines.lane == 0) walk.sent = batch.round + 1;
        return ok;
    }

    // kRows rows of a batch; their loads are issued before the first poll.
    template <bool kWhole, u32 kRows>
    __device__ bool pass_rows(const Batch& batch, u32 first) {
        const u32 count = kRows == 1 ? 1 : rows_of(batch);
        const auto pass_on = [&](u32 r, Pack pack) {
            if (hop.to != kNoRank) lines.send_part(lines.outbox(hop.to), slot_row(batch) + first + r, lines.part_of(pack));
            if (hop.to == kNoRank || keeps()) store<kWhole>(batch.row() + first + r, pack);
        };
        Pack own[kRows];
        const bool loads = Join::kHasOwn || hop.from == kNoRank;
#pragma unroll
        for (u32 r = 0; r < kRows; ++r) own[r] = loads ? load<kWhole>(batch.row() + first + r) : Pack{0, 0};
        if (hop.from != kNoRank) {
            const auto use = [&](u32 r, Pack came) { pass_on(r, join(came, own[r])); };
            return lines.template receive_rows<kRows>(hop.from, slot_row(batch) + first, count, use);
        }
#pragma unroll
        for (u32 r = 0; r < kRows; ++r)
            if (r < count) pass_on(r, own[r]);
        return true;
    }

    __device__ bool collect(const Batch& batch) {
        lines.lap = batch.lap;
        bool ok = true;
        if (is_whole(batch)) ok = collect_rows<true, kBatchRows>(batch, 0);
        else
            for (u32 r = 0; ok && r < rows_of(batch); ++r) ok = collect_rows<false, 1>(batch, r);
        if (ok) tell_taken(last, batch);
        return ok;
    }

    template <bool kWhole, u32 kRows>
    __device__ bool collect_rows(const Batch& batch, u32 first) {
        const auto keep = [&](u32 r, Pack pack) { store<kWhole>(batch.row() + first + r, pack); };
        return lines.template receive_rows<kRows>(last, slot_row(batch) + first, kRows == 1 ? 1 : rows_of(batch), keep);
    }

    // Signals to the previous rank that a batch is taken, unless that rank will not wait for it.
    __device__ void tell_taken(int from, const Batch& batch) {
        has_come = true;
        const bool is_awaited = !is_fixed || (batch.of_strip + places < strip_batches && batch.number + places < batches);
        if (lines.lane == 0 && is_awaited)
            st_after_loads_sys(taken_word(from, me(), batch.circle), channel.mark(batch.round + 1));
    }

    // A packet of a circle in `holder`'s slot for `writer`. Its y is the number of a strip. The x of the first packet counts
    // the batches that the writer has taken.
    __device__ Pack* packet(int holder, int writer, u32 circle, u32 word) const {
        const u32 place = channel.place_of(holder, writer);
        return &channel.slots(holder, channel.epoch & 1)[place * channel.team.slot_packets + circle * kStripWords + word];
    }
    __device__ u64* taken_word(int holder, int next, u32 circle) const { return &packet(holder, next, circle, 0)->x; }
    __device__ u64* strip_word(int holder, int previous, u32 circle, u32 strips) const {
        return &packet(holder, previous, circle, strips % kStripWords)->y;
    }

    // All lanes wait until the next rank has taken what had the batch's place. False: leave. Only stores follow that depend on
    // it, and no GPU makes those before the load has arrived.
    __device__ bool has_place(const Batch& batch) {
        const u64* word = taken_word(me(), hop.to, batch.circle);
        const u32 count = batch.round + 1 - places;
        const bool knows = batch.lap == 0 || __all_sync(kWarp, has_reached(taken, channel.mark(count)));
        if (!knows && !await_taken(batch.circle, count)) return false;
        taken = looks_ahead ? ld_relaxed_sys(word) : 0;
        return true;
    }

    __device__ bool await_taken(u32 circle, u32 count) const {
        u32 seen = 0;
        return count == 0 || await_word(taken_word(me(), hop.to, circle), hop.to, count, seen);
    }

    __device__ static bool has_reached(u64 seen, u64 wanted) { return seen >= wanted && seen >> 32 == wanted >> 32; }

    // All lanes wait until `peer` has written at least `count` to a word.
    __device__ bool await_word(const u64* word, int peer, u32 count, u32& seen) const {
        return await(channel.team, word, Awaited{channel.epoch, channel.index, peer, channel.mark(count), 0}, seen);
    }

    // Out of line, so that the rest has all registers.
    __device__ __noinline__ static bool await(const Team& team, const u64* word, Awaited what, u32& seen) {
        Patience patience;
        for (;;) {
            what.seen = ld_acquire_sys(word);
            seen = __shfl_sync(kWarp, u32(what.seen), 0);
            if (__all_sync(kWarp, has_reached(what.seen, what.expected))) return true;
            const bool goes_on = !patience.is_due() || threadIdx.x % 32 != 0 || patience.look(team, what);
            if (!__all_sync(kWarp, goes_on)) return false;  // lane 0 decides for the warp
        }
    }

    // Of a row, this lane's pack; zeros where it has none.
    template <bool kWhole>
    __device__ Pack load(u32 row) const {
        return has_pack(row) ? get_pack<kWhole>(send, pack(row), nbytes) : Pack{0, 0};
    }

    template <bool kWhole>
    __device__ void store(u32 row, Pack pack) const {
        if (has_pack(row)) store_pack<kWhole>(recv, this->pack(row), nbytes, pack);
    }

    __device__ u64 pack(u32 row) const { return u64(row) * kRowPacks + pack_of_lane(lines.lane); }
    __device__ bool has_pack(u32 row) const { return lines.has_pack() && pack(row) < packs; }
};
