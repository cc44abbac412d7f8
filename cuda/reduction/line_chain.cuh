// Chains of lines: partial results go from rank to rank in rank order, as in chain.cuh. They go as rows of lines, which need
// no fence and no signal.
//
// The next rank has a slot for the rows of this one. The slot is divided into *circles*, one or several for each warp. A
// circle has places for some *batches* of rows, and its warp uses them in turn. Warps never meet. For each batch a warp
//   1. waits until the next rank has taken the batch that had this place a lap ago;
//   2. loads its rank's own rows;
//   3. polls the rows of the previous rank. It folds each row that has come with its own, and stores the result to the next
//      rank at once;
//   4. tells the previous rank that it has taken the batch.
// The last rank stores results to recvbuf, or sends them to root in the same way. Root then begins the chain, and also stores
// the results to recvbuf, `places` batches behind those that it sends. All slots together hold more, so root never waits for
// itself.
//
// Flags of lines have the epoch, and the lap added to the hash, so a row is not taken for that of another lap. `taken` of a
// circle is the first word of a packet in the slot that the previous rank has for the next one, with the epoch and a count of
// batches. Slots of lines and packets alternate by the epoch's parity: a rank has entered the operation before the last
// when it writes them, and who has sent a row has entered this one.
//
// Other lengths of a batch, and telling every second batch only, were not faster on 4 H200 (docs/design_notes.md, "Long
// `Reduce` is a chain of lines"; 2026-11-28).
//
// A warp may have several circles. All ranks take batches in the order of their numbers, so the first batch that is not yet
// done somewhere never waits for another.
#pragma once
#include "protocol/chain.cuh"
#include "protocol/line.cuh"
#include "reduction/order.cuh"

constexpr u32 kBatchRows = 4;  // CHAIN_ROWS of pyncclx/collectives/algorithms.py
constexpr u32 kMostCircles = kMaxThreads / 32;

// The rows of one circle and round.
struct Batch {
    u32 circle, round, number, place, lap;

    __device__ u32 row() const { return number * kBatchRows; }
};

template <class T, class Op>
struct LineChain {
    Channel& channel;
    Lines lines;
    const Part part;
    const char* const send;
    char* const recv;
    const Hop hop;
    const int last;      // the rank that has the result
    const bool returns;  // this is root, and the result comes from `last`
    const u32 packs, rows, batches;  // sizes of this block's part
    const u32 whole_batches;         // batches of whole packs at multiples of 16
    const u32 circles, places;
    const bool looks_ahead;  // this warp has one circle:
    u64 taken = 0;           // its word, as it was when the batch before was passed

    __device__ LineChain(Channel& channel, const ReduceArgs& args, const Order& order)
        : channel(channel), lines(channel), part(args.nbytes, gridDim.x, blockIdx.x), send(args.send + part.begin),
          recv(args.recv + part.begin), hop(order.hop(args.team.rank)), last(order.last()),
          returns(args.team.rank == args.root && args.root != last), packs(u32(packs_in(part.nbytes))),
          rows(rows_in(part.nbytes)), batches((rows + kBatchRows - 1) / kBatchRows), whole_batches(find_whole()),
          circles(find_circles()),
          places(channel.team.slot_rows / circles / kBatchRows), looks_ahead(circles <= blockDim.x / 32) {}

    // All threads. True if nothing failed and data of every peer came (Channel::leave).
    __device__ bool run() {
        if (!channel.await_slots()) return false;
        const u32 warps = (blockDim.x + 31) / 32, rounds = (batches + circles - 1) / circles;
        const u32 behind = returns ? places : 0;
        Batch batch{0, 0, 0, 0, 0};
        for (; batch.round < rounds + behind; ++batch.round) {
            for (batch.circle = threadIdx.x / 32; batch.circle < circles; batch.circle += warps) {
                batch.number = batch.round * circles + batch.circle;
                if (!pass(batch) || !(batch.round < behind || !returns || collect(before(batch)))) return false;
            }
            if (++batch.place == places) batch.place = 0, ++batch.lap;
        }
        return rows > 0 && (returns || is_last());
    }

  private:
    static constexpr u32 kWarp = 0xffffffffu;

    __device__ int me() const { return channel.team.rank; }
    __device__ bool is_last() const { return me() == last; }

    __device__ u32 find_whole() const {
        const u64 to = hop.to == kNoRank || returns ? u64(recv) : 0;
        if ((u64(send) | to) % kPackNbytes != 0) return 0;
        return part.nbytes % kPackNbytes == 0 ? batches : u32(part.nbytes / (kBatchRows * kRowPacks * kPackNbytes));
    }

    // As many as have two places each, and words in a slot of packets.
    __device__ u32 find_circles() const {
        const u64 fit = smaller(channel.team.slot_rows / (2 * kBatchRows), channel.team.slot_packets);
        return u32(smaller(fit == 0 ? 1 : fit, kMostCircles));
    }

    // The batch of the same circle one lap ago.
    __device__ Batch before(const Batch& batch) const {
        return Batch{batch.circle, batch.round - places, batch.number - places * circles, batch.place, batch.lap - 1};
    }

    __device__ u32 slot_row(const Batch& batch) const { return (batch.circle * places + batch.place) * kBatchRows; }
    __device__ u32 rows_of(const Batch& batch) const { return u32(smaller(rows - batch.row(), kBatchRows)); }
    __device__ bool is_whole(const Batch& batch) const { return batch.number < whole_batches; }

    __device__ bool pass(const Batch& batch) {
        if (batch.number >= batches) return true;
        if (hop.to != kNoRank && !has_place(batch)) return false;
        lines.lap = batch.lap;
        bool ok = true;
        if (is_whole(batch)) ok = pass_rows<true, kBatchRows>(batch, 0);
        else
            for (u32 r = 0; ok && r < rows_of(batch); ++r) ok = pass_rows<false, 1>(batch, r);
        if (ok && hop.from != kNoRank) tell_taken(hop.from, batch);
        return ok;
    }

    // kRows rows of a batch; their loads are issued before the first poll.
    template <bool kWhole, u32 kRows>
    __device__ bool pass_rows(const Batch& batch, u32 first) {
        Pack own[kRows];
#pragma unroll
        for (u32 r = 0; r < kRows; ++r) own[r] = load<kWhole>(batch.row() + first + r);
        const u32 count = kRows == 1 ? 1 : rows_of(batch);
        const auto pass_on = [&](u32 r, Pack pack) {
            if (hop.to != kNoRank) lines.send_part(lines.outbox(hop.to), slot_row(batch) + first + r, lines.part_of(pack));
            else store<kWhole>(batch.row() + first + r, pack);
        };
        if (hop.from != kNoRank) {
            const auto fold = [&](u32 r, Pack came) { pass_on(r, folded(came, own[r])); };
            return lines.template receive_rows<kRows>(hop.from, slot_row(batch) + first, count, fold);
        }
#pragma unroll
        for (u32 r = 0; r < kRows; ++r)
            if (r < count) pass_on(r, own[r]);
        return true;
    }

    __device__ bool collect(const Batch& batch) {
        if (batch.number >= batches) return true;
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

    // Tells the previous rank that this one has taken a batch, if that waits for it: it sends the first `places` without.
    __device__ void tell_taken(int from, const Batch& batch) const {
        const bool is_awaited = batch.number + places * circles < batches;
        if (is_awaited && lines.lane == 0)
            st_after_loads_sys(taken_word(from, me(), batch.circle), channel.mark(batch.round + 1));
    }

    // The word in which `holder` sees how many batches of a circle the next rank has taken.
    __device__ u64* taken_word(int holder, int next, u32 circle) const {
        const u32 place = channel.place_of(holder, next);
        return &channel.slots(holder, channel.epoch & 1)[place * channel.team.slot_packets + circle].x;
    }

    // All lanes wait until the next rank has taken what had the batch's place. False: leave. Only stores follow that depend on
    // it, and no GPU makes those before the load has arrived.
    __device__ bool has_place(const Batch& batch) {
        const u64* word = taken_word(me(), hop.to, batch.circle);
        const u64 wanted = channel.mark(batch.round + 1 - places);
        const bool knows = batch.lap == 0 || __all_sync(kWarp, is_taken(taken, wanted));
        if (!knows && !await_taken(channel.team, word, Awaited{channel.epoch, channel.index, hop.to, wanted, 0})) return false;
        taken = looks_ahead ? ld_relaxed_sys(word) : 0;
        return true;
    }

    __device__ static bool is_taken(u64 taken, u64 wanted) { return taken >= wanted && taken >> 32 == wanted >> 32; }

    // Out of line, so that the rest has all registers.
    __device__ __noinline__ static bool await_taken(const Team& team, const u64* word, Awaited what) {
        Patience patience;
        for (;;) {
            what.seen = ld_acquire_sys(word);
            if (__all_sync(kWarp, is_taken(what.seen, what.expected))) return true;
            const bool goes_on = !patience.is_due() || threadIdx.x % 32 != 0 || patience.look(team, what);
            if (!__all_sync(kWarp, goes_on)) return false;  // lane 0 decides for the warp
        }
    }

    // Of a row, this lane's pack; zeros where it has none.
    template <bool kWhole>
    __device__ Pack load(u32 row) const {
        return has_pack(row) ? get_pack<kWhole>(send, lines.pack(row), part.nbytes) : Pack{0, 0};
    }

    template <bool kWhole>
    __device__ void store(u32 row, Pack pack) const {
        if (has_pack(row)) store_pack<kWhole>(recv, lines.pack(row), part.nbytes, pack);
    }

    __device__ bool has_pack(u32 row) const { return lines.has_pack() && lines.pack(row) < packs; }

    __device__ Pack folded(Pack came, Pack own) const {
        const bool own_first = hop.from > me();
        return fold_two<T, Op>(own_first ? own : came, own_first ? came : own, is_last() ? channel.team.size : 1);
    }
};
