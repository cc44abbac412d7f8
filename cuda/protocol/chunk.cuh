// Chunks: large messages through rings in the receiver's lease, plain stores and one signal a chunk.
//
// Each ordered pair of ranks has, in each channel, two rings of kDepth chunks in the receiver's lease; an
// operation that needs one ring only joins them to one with chunks of twice the length. The sender stores
// a chunk, then signals `head`; the receiver waits for head, reads the chunk, then signals `tail` in the
// sender's lease, which gives the chunk's place free. Both words count chunks of this operation on top of
// its epoch (epoch << 32), so they only grow, need no reset, and two ranks need not agree how many chunks
// the operations before have sent.
//
// Chunk k goes to place k % kDepth. The first kDepth chunks need no tail: they wait until the peer has
// entered this operation and thereby has finished the last one that used the ring.
//
// Each way of a chunk, storing it for a peer or taking it from one, is a job of a group of warps, which waits, moves,
// meets and signals, chunk after chunk. The groups of a block do not wait for each other, so that some move while
// the signals of others travel. A group that has several jobs does them in *rounds*: in round k it stores chunk k
// and takes chunk k - 1. What a round waits for, peers did in round k - 1 or before, so the group furthest behind, on
// whatever rank, never waits: no deadlock.
//
// A chunk has a cost of its own, whatever its length (waits, barriers, a fence), and what can be on the way is bounded by
// the memory of the rings. So the chunks are as long, and the rings as short, as can be: two chunks are enough.
#pragma once
#include "protocol/channel.cuh"
#include "protocol/vector.cuh"

struct Chunks {
    Channel& channel;
    const u32 nbytes;  // of a chunk

    __device__ explicit Chunks(Channel& channel, int rings = kRings)
        : channel(channel), nbytes(channel.team.chunk_nbytes * (kRings / rings)) {}

    // Those of another view of the channel, which are as long. Not a bare number: that says how many rings.
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

    // How far the rings of two sources are apart.
    __device__ u32 pair_nbytes() const { return kRings * kDepth * channel.team.chunk_nbytes; }

    // May chunk k be stored in `peer`'s ring?
    __device__ bool wait_for_place(int ring, int peer, u64 k) {
        if (k < kDepth) return channel.wait_for_entered(peer, channel.epoch);
        return wait_for_taken(ring, peer, k - kDepth);
    }

    // Has `peer` taken chunk k of this rank?
    __device__ bool wait_for_taken(int ring, int peer, u64 k) {
        return channel.wait_for_count(&channel.mine->tail[ring][peer], peer, k + 1);
    }

    // Has chunk k of `source` arrived?
    __device__ bool wait_for_chunk(int ring, int source, u64 k) {
        return channel.wait_for_count(&channel.mine->head[ring][source], source, k + 1);
    }

    // Chunk k is stored in `peer`'s ring. Those who stored have met, then the caller made fence_sys: together they order
    // what all of them stored before the signal.
    __device__ void signal_stored(int ring, int peer, u64 k) {
        st_relaxed_sys(&channel.theirs(peer)->head[ring][channel.team.rank], channel.mark(k + 1));
    }

    // Chunk k of `source` has been read, and they have met.
    __device__ void signal_read(int ring, int source, u64 k) {
        st_after_loads_sys(&channel.theirs(source)->tail[ring][channel.team.rank], channel.mark(k + 1));
    }

    // The group stores chunk k of a span for `peer`, with `fill(place)`. False: leave.
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

    // The group takes chunk k of `source`, with `use(place)`. False: leave.
    template <class Use>
    __device__ bool take(const Crew& crew, int ring, int source, u64 k, Use use) {
        if (!crew.everyone(crew.member != 0 || wait_for_chunk(ring, source, k))) return false;
        use(place(ring, channel.team.rank, source, k));
        crew.everyone(true);
        if (crew.member == 0) signal_read(ring, source, k);
        return true;
    }

    // The same pack by pack: pack i of a chunk is `load(i)`, and `keep(i, pack)` for each pack that came.
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
