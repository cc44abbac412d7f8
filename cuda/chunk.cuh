// Chunks: large messages through rings in the receiver's lease, plain stores and one signal a chunk.
//
// Each ordered pair of ranks has, in each channel, kRings rings of `depth` chunks in the receiver's lease.
// The sender stores a chunk, then releases `head`; the receiver acquires head, reads the chunk, then
// releases `tail` in the sender's lease, which gives the chunk's place free. Both words count chunks of
// this operation on top of its epoch (epoch << 32), so they only grow, need no reset, and two ranks need
// not agree how many chunks the operations before have sent.
//
// Chunk k goes to place k % depth. The first `depth` chunks need no tail: they wait until the peer has
// entered this operation and thereby has finished the last one that used the ring.
#pragma once
#include "channel.cuh"

struct Chunks {
    Channel& channel;
    const u32 nbytes;

    __device__ explicit Chunks(Channel& channel) : channel(channel), nbytes(channel.team.chunk_nbytes) {}

    __device__ u64 count(u64 message_nbytes) const { return (message_nbytes + nbytes - 1) / nbytes; }

    // Where chunk k of `source` lies in any rank's lease; the next source's lies `source_stride` further.
    __device__ u64 offset(int ring, int source, u64 k) const {
        const Team& team = channel.team;
        const u64 number = (u64(ring) * team.channels + channel.index) * team.size + source;
        return team.rings_offset + (number * team.depth + k % team.depth) * nbytes;
    }

    __device__ u64 source_stride() const { return u64(channel.team.depth) * nbytes; }

    __device__ Pack* place(int ring, int holder, int source, u64 k) const {
        return reinterpret_cast<Pack*>(channel.team.base[holder] + offset(ring, source, k));
    }

    // One thread: may chunk k be stored in `peer`'s ring?
    __device__ bool wait_for_place(int ring, int peer, u64 k) {
        if (k < channel.team.depth) return channel.wait_for_entered(peer, channel.epoch);
        return wait(&channel.mine->tail[ring][peer], peer, k + 1 - channel.team.depth);
    }

    // One thread: has chunk k of `source` arrived?
    __device__ bool wait_for_chunk(int ring, int source, u64 k) {
        return wait(&channel.mine->head[ring][source], source, k + 1);
    }

    // One thread, after a barrier of the block: chunk k is stored in `peer`'s ring.
    __device__ void signal_stored(int ring, int peer, u64 k) {
        st_release_sys(&theirs(peer)->head[ring][channel.team.rank], mark(k + 1));
    }

    // One thread, after a barrier of the block: chunk k of `source` has been read.
    __device__ void signal_read(int ring, int source, u64 k) {
        st_release_sys(&theirs(source)->tail[ring][channel.team.rank], mark(k + 1));
    }

  private:
    __device__ u64 mark(u64 chunks) const { return (u64(channel.epoch) << 32) + chunks; }
    __device__ ChannelControl* theirs(int rank) const { return channel_control(channel.team, rank, channel.index); }
    __device__ bool wait(const u64* word, int peer, u64 chunks) {
        return wait_for(channel.team, word, Awaited{channel.epoch, channel.index, peer, mark(chunks), 0});
    }
};
