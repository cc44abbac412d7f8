// Lines: messages of medium length that carry their own flags, in one trip, at nearly the speed of plain stores.
//
// A line is 128 bytes. Eight lanes of a warp store it by one instruction, and load it by one. NVLink carries it in one piece:
// if its last 8 bytes have this epoch, the other 120 are of this epoch too. So there is no fence and no signal. NCCL
// calls the format LL128. PTX does not promise as much: between GPUs without NVLink, ranks that share a GPU, and with
// PYNCCLX_LINES=0 there are no slots for lines (`slot_rows` is 0), and messages go as packets and chunks. It also takes
// the lanes of a warp to store and load together. __syncwarp() does not promise that they stay together after it, though the
// code for sm_90 and sm_100 joins them before it; lanes that are apart take another way, see st_line_sys().
//
// A warp sends a row of four lines at a time, 30 packs. Slots alternate by the epoch's parity, as those of packets do.
// Nothing else is ever stored there, so payload is never taken for a flag.
//
// kLinesAtOnce was measured on 4 H200 (docs/design_notes.md, "Lines carry what is neither short nor long").
#pragma once
#include "protocol/channel.cuh"

constexpr u32 kRowPacks = 30;     // payload packs of a row
constexpr u32 kRowPlaces = kRowNbytes / kPackNbytes;  // packs that a row takes
constexpr int kLinesAtOnce = 4;   // ranks, or rows, that are loaded before the first is used

// The pack that a lane has in a row. Of every two lines one pack is split into halves, which stand before the two flags. It
// belongs to lane 7 of 16; lane 15 has no pack, but carries the other half.
__device__ __forceinline__ u32 pack_of_lane(u32 lane) {
    const u32 of_two = lane % 16;
    return lane / 16 * 15 + (of_two < 7 ? of_two : of_two == 7 ? 14 : of_two - 1);
}

__device__ __forceinline__ u32 rows_in(u64 nbytes) { return u32((packs_in(nbytes) + kRowPacks - 1) / kRowPacks); }

// The line slots of a channel in this operation. All lanes of a warp call its functions, with the same arguments but for
// packs.
struct Lines {
    Channel& channel;
    const u32 slot_nbytes;
    const u64 slots_offset;   // offset of this channel's and parity's slots in every lease
    const Pack* const inbox;  // this rank's slots
    const u32 lane;
    u32 lap = 0;  // counts the rows that go through one place of a slot in this operation (line_chain.cuh)

    __device__ explicit Lines(Channel& channel)
        : channel(channel),
          slot_nbytes(channel.team.slot_rows * kRowNbytes),
          slots_offset(channel.team.lines_offset + (u64(channel.index) * 2 + (channel.epoch & 1)) * channel.places() * slot_nbytes),
          inbox(slot(channel.team.rank, channel.team.rank + 1)),
          lane(threadIdx.x % 32) {}

    // The pack of a message that this lane has in a row.
    __device__ u32 pack(u32 row) const { return row * kRowPacks + pack_of_lane(lane); }
    __device__ bool has_pack() const { return lane % 16 != 15; }

    __device__ Pack* outbox(int peer) const { return slot(peer, channel.team.rank); }

    // The 16 bytes that this lane stores, given each lane's pack of a row.
    __device__ Pack part_of(Pack pack) const {
        const u64 half = __shfl_sync(kWarp, pack.y, int(lane & ~8u));
        return Pack{lane % 16 == 15 ? half : pack.x, has_flag() ? flag() : pack.y};
    }

    __device__ void send_part(Pack* outbox, u32 row, Pack part) const { st_line_sys(outbox + row * kRowPlaces + lane, part); }

    // The outboxes of the peers that receive something, one in each lane: lane j returns that of the j-th peer, or 0.
    template <class Receives>
    __device__ u64 outboxes(Receives receives) const {
        const int peer = channel.peer(int(lane));
        return lane < channel.places() && receives(peer) ? u64(outbox(peer)) : 0;
    }

    // Sends the same pack to each of these outboxes.
    __device__ void send_to_each(u64 outboxes, u32 row, Pack pack) const {
        const Pack part = part_of(pack);
        for (u32 j = 0; j < channel.places(); ++j) {
            const u64 outbox = __shfl_sync(kWarp, outboxes, int(j));
            if (outbox != 0) send_part(reinterpret_cast<Pack*>(outbox), row, part);
        }
    }

    // Sends one row to each peer, of messages of equal length; from(peer) is where a peer's begins.
    template <class From>
    __device__ void send_rows(u32 row, u64 nbytes, From from) const {
        for (int first = 0; first < int(channel.places()); first += kLinesAtOnce) {
            Pack packs[kLinesAtOnce];
            const auto is_there = [&](int s) { return first + s < int(channel.places()); };
#pragma unroll
            for (int s = 0; s < kLinesAtOnce; ++s)
                if (is_there(s)) packs[s] = load(from(channel.peer(first + s)), row, nbytes);
#pragma unroll
            for (int s = 0; s < kLinesAtOnce; ++s)
                if (is_there(s)) send_part(outbox(channel.peer(first + s)), row, part_of(packs[s]));
        }
    }

    // Sends rows `member`, `member` + `members` … of a message of `packs` packs; load(i) returns pack i.
    template <class Load>
    __device__ void send_message(u32 member, u32 members, Pack* outbox, u64 packs, Load load) const {
        const u32 rows = u32((packs + kRowPacks - 1) / kRowPacks);
        for (u32 row = member; row < rows; row += kLinesAtOnce * members) {
            Pack parts[kLinesAtOnce];
#pragma unroll
            for (int r = 0; r < kLinesAtOnce; ++r) {
                const u32 i = pack(row + r * members);
                parts[r] = has_pack() && i < packs ? load(i) : Pack{0, 0};
            }
#pragma unroll
            for (int r = 0; r < kLinesAtOnce; ++r)
                if (row + r * members < rows) send_part(outbox, row + r * members, part_of(parts[r]));
        }
    }

    __device__ void send_message(u32 member, u32 members, Pack* outbox, const char* from, u64 nbytes) const {
        const u32 whole = u64(from) % kPackNbytes == 0 ? u32(nbytes / kPackNbytes) : 0;
        const auto load = [&](u32 i) { return i < whole ? reinterpret_cast<const Pack*>(from)[i] : load_pack(from, i, nbytes); };
        send_message(member, members, outbox, packs_in(nbytes), load);
    }

    // This lane's pack of a row; zeros past the message's end.
    __device__ Pack load(const char* message, u32 row, u64 nbytes) const {
        if (!has_pack() || pack(row) >= packs_in(nbytes)) return Pack{0, 0};
        return load_pack(message, pack(row), nbytes);
    }

    __device__ void store(char* message, u32 row, u64 nbytes, Pack value) const {
        if (has_pack()) store_pack(message, pack(row), nbytes, value);
    }

    // Receives some rows at once: the s-th, if is_there(s), is row_of(s) of source_of(s). False: leave.
    template <int kCount, class IsThere, class Source, class Row>
    __device__ bool receive(IsThere is_there, Source source_of, Row row_of, Pack (&packs)[kCount]) {
        const Pack* places[kCount];  // computed before the loop, so that a poll is short
#pragma unroll
        for (int s = 0; s < kCount; ++s) places[s] = is_there(s) ? coming(source_of(s), row_of(s)) : nullptr;
        const auto has_come = [&](int s) { return places[s] == nullptr || !has_flag() || packs[s].y == flag(); };
        Patience patience;
        for (;;) {
#pragma unroll
            for (int s = 0; s < kCount; ++s)
                if (places[s] != nullptr) packs[s] = ld_line_sys(places[s]);
            bool all = true;
#pragma unroll
            for (int s = 0; s < kCount; ++s) all &= has_come(s);
            if (__all_sync(kWarp, all)) break;
            if (!patience.is_due()) continue;
            int missing = 0;
#pragma unroll
            for (int s = 0; s < kCount; ++s)
                if (!__all_sync(kWarp, has_come(s))) missing = source_of(s);
            const Awaited what{channel.epoch, channel.index, missing, channel.epoch, 0};
            if (!__all_sync(kWarp, lane != 0 || patience.look(channel.team, what))) return false;  // lane 0 decides for the warp
        }
#pragma unroll
        for (int s = 0; s < kCount; ++s) packs[s] = whole(packs[s]);
        return true;
    }

    // One row from each of the sources first, first + 1 … below `end`, at most kLinesAtOnce, except this rank.
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

    // Receives rows `member`, `member` + `members` … of a message, several at once. False: leave.
    __device__ bool receive_message(u32 member, u32 members, int source, char* to, u64 nbytes, u64 kept) {
        const u32 rows = rows_in(nbytes);
        for (u32 row = member; row < rows; row += kLinesAtOnce * members) {
            Pack packs[kLinesAtOnce];
            const auto row_of = [&](int s) { return row + s * members; };
            const auto is_there = [&](int s) { return row_of(s) < rows; };
            if (!receive(is_there, [&](int) { return source; }, row_of, packs)) return false;
#pragma unroll
            for (int s = 0; s < kLinesAtOnce; ++s)
                if (is_there(s)) store(to, row_of(s), kept, packs[s]);
        }
        return true;
    }

    // Waits for `count` rows of a source, at most kMost, from row `first` on. As soon as a row has come, it calls
    // use(number, pack) with the row's number among them. False: leave.
    template <u32 kMost, class Use>
    __device__ bool receive_rows(int source, u32 first, u32 count, Use use) {
        const Pack* const place = coming(source, first);
        u32 missing = (1u << count) - 1;
        Patience patience;
        for (;;) {
            Pack parts[kMost];
#pragma unroll
            for (u32 r = 0; r < kMost; ++r)
                if (missing >> r & 1) parts[r] = ld_line_sys(place + r * kRowPlaces);
#pragma unroll
            for (u32 r = 0; r < kMost; ++r) {
                if (!(missing >> r & 1) || !__all_sync(kWarp, !has_flag() || parts[r].y == flag())) continue;
                missing &= ~(1u << r);
                use(r, whole(parts[r]));
            }
            if (missing == 0) return true;
            if (!patience.is_due()) continue;
            const Awaited what{channel.epoch, channel.index, source, channel.epoch, 0};
            if (!__all_sync(kWarp, lane != 0 || patience.look(channel.team, what))) return false;  // lane 0 decides for the warp
        }
    }

  private:
    static constexpr u32 kWarp = 0xffffffffu;

    __device__ bool has_flag() const { return lane % 8 == 7; }
    // The epoch, and above it the call's hash: where calls differ, nothing comes.
    __device__ u64 flag() const { return u64(u32(channel.team.called.words[0]) + lap) << 32 | channel.epoch; }

    // The slot for `source` in `holder`'s lease.
    __device__ Pack* slot(int holder, int source) const {
        const u32 place = channel.place_of(holder, source);
        return reinterpret_cast<Pack*>(channel.team.base[holder] + slots_offset + u64(place) * slot_nbytes);
    }

    // Where a row from `source` arrives.
    __device__ const Pack* coming(int source, u32 row) const {
        const u32 place = channel.place_of(channel.team.rank, source);
        return inbox + u64(place) * (slot_nbytes / kPackNbytes) + row * kRowPlaces + lane;
    }

    // Lane 7 of 16 gets the other half of its pack.
    __device__ Pack whole(Pack part) const {
        const u64 half = __shfl_sync(kWarp, part.x, int(lane | 8u));
        return Pack{part.x, lane % 16 == 7 ? half : part.y};
    }
};
