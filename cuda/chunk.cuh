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
// Operations work in *steps*: wait for what the step needs, move, barrier, signal. A chunk stored in step k is
// taken in step k + 1, so that its signal travels while others are moved. A rank in step k needs of its peers
// what they did in step k - 1 or before, so the rank furthest behind never waits: no deadlock.
//
// A step has a cost of its own, whatever it moves (waits, barriers, a fence), and what it moves is bounded by
// the memory of the rings. So the chunks are as long, and the rings as short, as can be: two chunks are enough.
#pragma once
#include "channel.cuh"
#include "vector.cuh"

struct Chunks {
    Channel& channel;
    const u32 nbytes;  // of a chunk

    __device__ explicit Chunks(Channel& channel, int rings = kRings)
        : channel(channel), nbytes(channel.team.chunk_nbytes * (kRings / rings)) {}

    // Where chunk k of `source` lies in `holder`'s lease.
    __device__ Pack* place(int ring, int holder, int source, u64 k) const {
        const Team& team = channel.team;
        const u64 pair = u64(channel.index) * channel.places() + channel.place_of(holder, source);
        const u64 rings = pair * (kRings * kDepth * team.chunk_nbytes) + (ring * kDepth + u32(k % kDepth)) * nbytes;
        return reinterpret_cast<Pack*>(team.base[holder] + team.rings_offset + rings);
    }

    // All threads make the waits of a step: `wait(kind, peer)` is called for each kind and peer; false: leave.
    template <class Wait>
    __device__ bool await(u32 kinds, Wait wait) {
        bool ok = true;
        const Crew crew(kinds);
        for (u32 kind = crew.first_job; kind < kinds; kind += crew.next_job)
            if (ok && channel.is_peer(int(crew.member))) ok = wait(kind, int(crew.member));
        return channel.everyone(ok);
    }

    // May chunk k be stored in `peer`'s ring?
    __device__ bool wait_for_place(int ring, int peer, u64 k) {
        if (k < kDepth) return channel.wait_for_entered(peer, channel.epoch);
        return wait(&channel.mine->tail[ring][peer], peer, k + 1 - kDepth);
    }

    // Has chunk k of `source` arrived?
    __device__ bool wait_for_chunk(int ring, int source, u64 k) {
        return wait(&channel.mine->head[ring][source], source, k + 1);
    }

    // Chunk k is stored in `peer`'s ring. The caller has made a barrier of the block, then fence_sys: together
    // they order what all threads stored before the signal.
    __device__ void signal_stored(int ring, int peer, u64 k) {
        st_relaxed_sys(&theirs(peer)->head[ring][channel.team.rank], mark(k + 1));
    }

    // Chunk k of `source` has been read; after a barrier and fence_sys, as above.
    __device__ void signal_read(int ring, int source, u64 k) {
        st_relaxed_sys(&theirs(source)->tail[ring][channel.team.rank], mark(k + 1));
    }

  private:
    __device__ u64 mark(u64 chunks) const { return (u64(channel.epoch) << 32) + chunks; }
    __device__ ChannelControl* theirs(int rank) const { return channel_control(channel.team, rank, channel.index); }
    __device__ bool wait(const u64* word, int peer, u64 chunks) {
        return wait_for(channel.team, word, Awaited{channel.epoch, channel.index, peer, mark(chunks), 0});
    }
};
