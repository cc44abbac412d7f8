// Lines: messages of medium length that bring their own flags, in one trip, at nearly the speed of plain stores.
//
// A line is 128 bytes, which eight lanes of a warp store by one instruction, and load by one. NVLink carries it in one piece:
// where its last 8 bytes show this epoch, the other 120 are of this epoch too. So there is no fence and no signal. NCCL
// calls the format LL128. PTX does not promise as much: between GPUs without NVLink there are no slots for lines
// (pyncclx/members.py), and messages go as packets and chunks.
//
// A warp sends a row of four lines at a time, 30 packs. Slots alternate by the epoch's parity, as those of packets do,
// and nothing else is ever stored there: what is no flag cannot look like one.
#pragma once
#include "channel.cuh"

constexpr u32 kRowPacks = 30;     // of payload
constexpr u32 kRowPlaces = kRowNbytes / kPackNbytes;  // packs that a row takes
constexpr int kLinesAtOnce = 4;   // ranks, or rows, that are on their way before the first is used

__device__ __forceinline__ u32 rows_in(u64 nbytes) { return u32((packs_in(nbytes) + kRowPacks - 1) / kRowPacks); }

// The line slots of a channel in this operation. All lanes of a warp make its calls, with the same arguments but for packs.
struct Lines {
    Channel& channel;
    const Pack* const inbox;  // this rank's slots
    const u32 lane;

    __device__ explicit Lines(Channel& channel)
        : channel(channel), inbox(channel.line_slots(channel.team.rank, channel.epoch & 1)), lane(threadIdx.x % 32) {}

    // All threads: have the peers read what the slots of this parity held?
    __device__ bool await_free() { return channel.await_entered(1); }

    // The pack of a message that this lane has in a row. Of every two lines one pack is in halves, before the two flags: it is
    // lane 7's of 16, and lane 15 has none.
    __device__ u64 pack(u32 row) const {
        const u32 of_two = lane % 16;
        return u64(row) * kRowPacks + lane / 16 * 15 + (of_two < 7 ? of_two : of_two == 7 ? 14 : of_two - 1);
    }
    __device__ bool has_pack() const { return lane % 16 != 15; }

    __device__ Pack* outbox(int peer) const {
        return channel.line_slots(peer, channel.epoch & 1) + place(peer, channel.team.rank);
    }

    __device__ void send(Pack* outbox, u32 row, Pack pack) const {
        const u64 half = __shfl_sync(kWarp, pack.y, int(lane & ~8u));
        const Pack part{lane % 16 == 15 ? half : pack.x, has_flag() ? flag() : pack.y};
        st_line_sys(outbox + row * kRowPlaces + lane, part);
    }

    // A message of `packs` packs, of which pack i is load(i), goes to the rows from `first_row` on; this warp sends rows
    // `member`, `member` + `members` … of it.
    template <class Load>
    __device__ void send_message(u32 member, u32 members, Pack* outbox, u32 first_row, u64 packs, Load load) const {
        const u32 rows = u32((packs + kRowPacks - 1) / kRowPacks);
        for (u32 row = member; row < rows; row += kLinesAtOnce * members) {
            Pack parts[kLinesAtOnce];
#pragma unroll
            for (int r = 0; r < kLinesAtOnce; ++r) {
                const u64 i = pack(row + r * members);
                parts[r] = has_pack() && i < packs ? load(i) : Pack{0, 0};
            }
#pragma unroll
            for (int r = 0; r < kLinesAtOnce; ++r)
                if (row + r * members < rows) send(outbox, first_row + row + r * members, parts[r]);
        }
    }

    __device__ void send_message(u32 member, u32 members, Pack* outbox, u32 first_row, const char* from, u64 nbytes) const {
        const auto load = [&](u64 i) { return load_pack(from, i, nbytes); };
        send_message(member, members, outbox, first_row, packs_in(nbytes), load);
    }

    // This lane's pack of a row; past the message's end it is zero.
    __device__ Pack load(const char* message, u32 row, u64 nbytes) const {
        if (!has_pack() || pack(row) >= packs_in(nbytes)) return Pack{0, 0};
        return load_pack(message, pack(row), nbytes);
    }

    __device__ void store(char* message, u32 row, u64 nbytes, Pack value) const {
        if (has_pack()) store_pack(message, pack(row), nbytes, value);
    }

    // One row from each of the sources first, first + 1 … below `end`, at most kLinesAtOnce; this rank's own is left alone.
    __device__ bool receive_each(int first, int end, u32 row, Pack (&packs)[kLinesAtOnce]) {
        const auto is_there = [&](int s) { return first + s < end && channel.is_peer(first + s); };
        return receive(is_there, [&](int s) { return first + s; }, [&](int) { return row; }, packs);
    }

    __device__ bool receive(int source, u32 row, Pack& pack) {
        Pack packs[1];
        const bool ok = receive([](int) { return true; }, [&](int) { return source; }, [&](int) { return row; }, packs);
        pack = packs[0];
        return ok;
    }

    // The rows from `first_row` on bring a message; this warp takes rows `member`, `member` + `members` … of it. Of what comes
    // as fast as the link allows, several at once; of what is folded before, one, to store it while the next one comes.
    template <int kAtOnce = kLinesAtOnce>
    __device__ bool receive_message(u32 member, u32 members, int source, u32 first_row, char* to, u64 nbytes, u64 kept) {
        const u32 rows = rows_in(nbytes);
        for (u32 row = member; row < rows; row += kAtOnce * members) {
            Pack packs[kAtOnce];
            const auto row_of = [&](int s) { return row + s * members; };
            const auto is_there = [&](int s) { return row_of(s) < rows; };
            const auto place_of = [&](int s) { return first_row + row_of(s); };
            if (!receive(is_there, [&](int) { return source; }, place_of, packs)) return false;
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s)
                if (is_there(s)) store(to, row_of(s), kept, packs[s]);
        }
        return true;
    }

  private:
    static constexpr u32 kWarp = 0xffffffffu;

    __device__ bool has_flag() const { return lane % 8 == 7; }
    __device__ u64 flag() const { return channel.epoch; }
    __device__ u32 place(int holder, int source) const {
        return channel.place_of(holder, source) * channel.team.slot_rows * kRowPlaces;
    }

    // Lane 7 of 16 gets the other half of its pack.
    __device__ Pack whole(Pack part) const {
        const u64 half = __shfl_sync(kWarp, part.x, int(lane | 8u));
        return Pack{part.x, lane % 16 == 7 ? half : part.y};
    }

    // Some rows at once: the s-th, if is_there(s), is row_of(s) of source_of(s).
    template <int kCount, class IsThere, class Source, class Row>
    __device__ bool receive(IsThere is_there, Source source_of, Row row_of, Pack (&packs)[kCount]) {
        Patience patience;
        for (;;) {
            int missing = -1;
#pragma unroll
            for (int s = 0; s < kCount; ++s)
                if (is_there(s))
                    packs[s] = ld_line_sys(inbox + place(channel.team.rank, source_of(s)) + row_of(s) * kRowPlaces + lane);
#pragma unroll
            for (int s = 0; s < kCount; ++s)
                if (is_there(s) && !__all_sync(kWarp, !has_flag() || packs[s].y == flag())) missing = source_of(s);
            if (missing < 0) break;
            if (!lasts(patience, missing)) return false;
        }
#pragma unroll
        for (int s = 0; s < kCount; ++s)
            if (is_there(s)) packs[s] = whole(packs[s]);
        return true;
    }

    // After a look in vain: one lane is patient for all.
    __device__ bool lasts(Patience& patience, int source) const {
        const auto what = [&] { return Awaited{channel.epoch, channel.index, source, channel.epoch, 0}; };
        return __all_sync(kWarp, lane != 0 || patience.lasts(channel.team, what)) != 0;
    }
};
