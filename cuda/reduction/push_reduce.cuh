// All-reduce of long vectors by stores alone. Every recvbuf is in a window and is not the sendbuf, so it has room for
// contributions. Links carry stores faster than loads, and fastest from one rank to one other (4 H200,
// docs/design_notes.md, "A long all-reduce stores, and loads nothing over the links").
//
// The vector is cut into a shard for each rank, and so is every recvbuf:
//   1. every rank stores its contribution to shard p in the recvbuf of p, one peer after the other;
//   2. p folds them, and stores the result in its own recvbuf and, at once, in that of the next rank;
//   3. p copies the result to the other ranks, one after the other.
// Between the steps all ranks meet. A contribution is stored where its rank's shard will belong in step 3. The previous
// rank's shard arrives in step 2 already, so its contribution is stored in the place of p's own result, which replaces
// it pack by pack. The packs or groups that do not divide by the ranks go through the rings, and every rank folds them.
#pragma once
#include "protocol/reach.cuh"
#include "reduction/reduce.cuh"

// All threads: a meeting of all ranks. It releases what a rank stored, and ends after all ranks have loaded. `times`: how
// often they have met before in this operation. False: leave.
__device__ inline bool meet(Channel& channel, u64 times) {
    Chunks chunks(channel);
    const int peer = int(threadIdx.x);
    __syncthreads();
    if (channel.is_peer(peer)) {
        fence_sys();
        chunks.signal_stored(0, peer, times);
    }
    return channel.everyone(!channel.is_peer(peer) || chunks.wait_for_chunk(0, peer, times));
}

// All threads copy a shard to a peer.
__device__ inline void copy_shard(const char* from, char* to, u64 nbytes) {
    copy_message(threadIdx.x, blockDim.x, from, to, nbytes);
}

// Whether a ring has room for the groups that do not divide by the ranks. The same on all ranks.
template <class T>
__device__ bool can_push(const Team& team) { return team.chunk_nbytes >= u32(team.size) * kGroupNbytes<T>; }

template <class T, class Op>
struct PushReduce {
    Channel& channel;
    const Reach& reach;
    const Part part;    // this block's part of the vector
    const u64 nbytes;   // bytes of a shard
    const char* send;
    char* recv;
    Chunks chunks;

    __device__ PushReduce(Channel& channel, const Reach& reach, const ReduceArgs& args)
        : channel(channel),
          reach(reach),
          part(args.nbytes, gridDim.x, blockIdx.x, kGroupNbytes<T>),
          nbytes(part.nbytes / (u32(channel.team.size) * kGroupNbytes<T>) * kGroupNbytes<T>),
          send(args.send + part.begin),
          recv(args.recv + part.begin),
          chunks(channel) {}

    __device__ bool run() {
        const int peers = size() - 1;
        for (int j = 0; j < peers; ++j) {
            const int peer = channel.peer(j);
            copy_shard(send + peer * nbytes, theirs(peer) + place(me(), peer) * nbytes, nbytes);
        }
        send_rest();
        if (!meet(channel, 0)) return false;
        fold(channel.peer(0));
        fold_rest();
        if (!meet(channel, 1)) return false;
        if (peers == 1) return true;
        for (int j = 1; j < peers; ++j) copy_shard(recv + me() * nbytes, theirs(channel.peer(j)) + me() * nbytes, nbytes);
        return meet(channel, 2);
    }

  private:
    __device__ int size() const { return channel.team.size; }
    __device__ int me() const { return channel.team.rank; }
    __device__ char* theirs(int rank) const { return reach.recv[rank] + part.begin; }

    // The shard in whose place the recvbuf of `holder` has the contribution of `source`.
    __device__ int place(int source, int holder) const {
        return source + 1 == holder || source + 1 == holder + size() ? holder : source;
    }

    __device__ void fold(int next) const {
        const u64 places = u64(send) | u64(recv) | u64(theirs(next));
        const bool few = kGroupPacks<T> == 1 && size() <= kFewRanks;
        const u64 whole = few && places % kPackNbytes == 0 ? packs_in(nbytes) : 0;  // a shard ends with a pack
        if constexpr (kGroupPacks<T> == 1) fold<true>(next, 0, whole);
        fold<false>(next, whole, packs_in(nbytes));
    }

    template <bool kWhole>
    __device__ void fold(int next, u64 begin, u64 end) const {
        const char* mine = send + me() * nbytes;
        char *here = recv + me() * nbytes, *there = theirs(next) + me() * nbytes;
        const auto load = [&](int rank, u64 i) {
            return get_pack<kWhole>(rank == me() ? mine : recv + place(rank, me()) * nbytes, begin + i, nbytes);
        };
        fold_far<T, Op, kWhole>(threadIdx.x, blockDim.x, end - begin, size(), load, [&](u64 i, Pack pack) {
            put_pack<kWhole>(there, begin + i, nbytes, pack);
            put_pack<kWhole>(here, begin + i, nbytes, pack);
        });
    }

    __device__ u64 rest() const { return part.nbytes - size() * nbytes; }

    __device__ void send_rest() const {
        const char* from = send + size() * nbytes;
        for (u64 i = threadIdx.x; i < packs_in(rest()); i += blockDim.x) {
            const Pack pack = load_pack(from, i, rest());
            for (int j = 0; j < size() - 1; ++j) put_pack(chunks.place(0, channel.peer(j), me(), 0) + i, pack);
        }
    }

    __device__ void fold_rest() const {
        const char* from = send + size() * nbytes;
        const auto load = [&](int rank, u64 i) {
            return rank == me() ? load_pack(from, i, rest()) : get_pack(chunks.place(0, me(), rank, 0) + i);
        };
        fold_shard<T, Op>(threadIdx.x, blockDim.x, packs_in(rest()), size(), load, [&](u64 i, Pack pack) {
            store_pack(recv + size() * nbytes, i, rest(), pack);
        });
    }
};
