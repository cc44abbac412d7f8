// Chunks: large messages through rings in the receiver's lease, by plain stores and one signal for each chunk.
//
// Each ordered pair of ranks has, in each channel, two rings of kDepth chunks in the receiver's lease. An operation that
// needs one ring joins them to one with chunks of twice the length. Chunk k goes to place k % kDepth:
//   1. The sender waits for the place. The first kDepth chunks need the peer to have entered this operation, and thereby to have
//      finished the last one that used the ring; later ones need `tail`.
//   2. A group of warps stores the chunk and meets; one thread makes a fence and signals `head` in the receiver's lease.
//   3. The receiver waits for `head`, reads the chunk, meets, and signals `tail` in the sender's lease.
// Both words have the epoch in the upper half and count the chunks of this operation in the lower half. So they only
// grow, need no reset, and ranks need not agree on how many chunks earlier operations have sent.
//
// Storing chunks for a peer, or taking a peer's chunks, is a job of a group of warps (Crew). Groups of a block do not
// wait for each other, so that some move data while signals of others travel. A group with several jobs does them in
// *rounds*: in round k it stores chunk k and takes chunk k - 1. A round waits only for what peers did in round k - 1 or
// earlier. So the group that is furthest behind, on any rank, never waits, and there is no deadlock.
//
// A chunk has a cost whatever its length (waits, barriers, a fence), and the memory of the rings bounds what can be in
// flight. So chunks are long and rings short: kDepth is 2.
#pragma once
#include "protocol/channel.cuh"
#include "protocol/vector.cuh"

struct Chunks {
    Channel& channel;
    const u32 nbytes;  // bytes of a chunk

    __device__ explicit Chunks(Channel& channel, int rings = kRings)
        : channel(channel), nbytes(channel.team.chunk_nbytes * (kRings / rings)) {}

    // Chunks of a given length. A bare number would be the number of rings.
    struct Length {
        u32 nbytes;
    };
    __device__ Chunks(Channel& channel, Length length) : channel(channel), nbytes(length.nbytes) {}

    // Where chunk k of `source` lies in `holder`'s lease.
    __device__ Pack* place(int ring, int holder, int source, u64 k) const {
        const Team& team = channel.team;
        const u64 pair = u64(channel.index) * channel.places() + channel.place_of(holder, source);
        const u64 rings = pair * pair_nbytes() + (ring * kDepth + u32(k % kDepth)) * nbytes;
        return reinterpret_cast<Pack*>(team.base[holder] + team.rings_offset + rings);
    }

    // The distance between the rings of two sources.
    __device__ u32 pair_nbytes() const { return kRings * kDepth * channel.team.chunk_nbytes; }

    // Waits until chunk k may be stored in `peer`'s ring. False: leave.
    __device__ bool wait_for_place(int ring, int peer, u64 k) {
        if (k < kDepth) return channel.wait_for_entered(peer, channel.epoch);
        return wait_for_taken(ring, peer, k - kDepth);
    }

    // Waits until `peer` has taken chunk k of this rank.
    __device__ bool wait_for_taken(int ring, int peer, u64 k) {
        return channel.wait_for_count(&channel.mine->tail[ring][peer], peer, k + 1);
    }

    // Waits until chunk k of `source` has arrived.
    __device__ bool wait_for_chunk(int ring, int source, u64 k) {
        return channel.wait_for_count(&channel.mine->head[ring][source], source, k + 1);
    }

    // Signals that chunk k is stored in `peer`'s ring. The threads that stored it have met at a barrier; then the
    // caller has made fence_sys. Together these order all their stores before the signal.
    __device__ void signal_stored(int ring, int peer, u64 k) {
        st_relaxed_sys(&channel.theirs(peer)->head[ring][channel.team.rank], channel.mark(k + 1));
    }

    // Signals that chunk k of `source` has been read, by threads that have met at a barrier.
    __device__ void signal_read(int ring, int source, u64 k) {
        st_after_loads_sys(&channel.theirs(source)->tail[ring][channel.team.rank], channel.mark(k + 1));
    }

    // The group stores chunk k for `peer` by `fill(place)`. False: leave.
    template <class Fill>
    __device__ bool store(const Crew& crew, int ring, int peer, u64 k, Fill fill) {
        if (!crew.everyone(crew.member != 0 || wait_for_place(ring, peer, k))) return false;
        fill(place(ring, peer, channel.team.rank, k));
        crew.everyone(true);
        if (crew.member == 0) {
            fence_sys();
            signal_stored(ring, peer, k);
        }
        return true;
    }

    // The group takes chunk k of `source` by `use(place)`. False: leave.
    template <class Use>
    __device__ bool take(const Crew& crew, int ring, int source, u64 k, Use use) {
        if (!crew.everyone(crew.member != 0 || wait_for_chunk(ring, source, k))) return false;
        use(place(ring, channel.team.rank, source, k));
        crew.everyone(true);
        if (crew.member == 0) signal_read(ring, source, k);
        return true;
    }

    // Takes or stores pack by pack: load(i) returns pack i to store, keep(i, pack) keeps a pack that has arrived.
    template <class Load>
    __device__ bool store(const Crew& crew, int ring, int peer, u64 k, u64 chunk_nbytes, Load load) {
        return store(crew, ring, peer, k, [&](Pack* to) {
            const auto put = [&](u64 i, Pack pack) { put_pack(to + i, pack); };
            move_packs(crew.member, packs_in(chunk_nbytes), crew.members, load, put);
        });
    }

    template <class Keep>
    __device__ bool take(const Crew& crew, int ring, int source, u64 k, u64 chunk_nbytes, Keep keep) {
        return take(crew, ring, source, k, [&](const Pack* from) {
            const auto get = [&](u64 i) { return get_pack(from + i); };
            move_packs(crew.member, packs_in(chunk_nbytes), crew.members, get, keep);
        });
    }
};
