// Bcast: every rank's buffer becomes root's.
//
//   bcast_direct    root sends the whole message to every peer: one trip, (size - 1) times the bytes.
//   bcast_two_shot  root cuts each tile into size - 1 pieces and sends one to each peer; a peer keeps its
//                   piece and relays it to the others. Each rank sends and receives the message about once.
//
// In both, the buffer is args.recv on every rank; root only reads it.
#include "exchange.cuh"

__global__ void __launch_bounds__(kMaxThreads, 1) bcast_direct(const __grid_constant__ MoveArgs args) {
    const Team& team = args.team;
    const Span whole = part_of(args.recv, args.nbytes), nothing{args.recv, 0, 0};
    exchange_all(
        team,
        [&](int rank) { return team.rank == args.root && rank != args.root ? whole : nothing; },
        [&](int rank) { return team.rank != args.root && rank == args.root ? whole : nothing; });
}

// Tile t is scattered by root into ring 0 in step t, relayed by each peer into ring 1 in step t + 1, and what
// the others relayed is collected in step t + 2.
struct Relay {
    Channel& channel;
    Chunks chunks;
    const int root;
    const Span span;  // this block's part of the buffer
    const u64 piece_nbytes;

    __device__ int me() const { return channel.team.rank; }
    __device__ int peers() const { return channel.team.size - 1; }
    __device__ bool is_root() const { return me() == root; }
    __device__ u64 tiles() const {
        const u64 tile_nbytes = piece_nbytes * peers();  // 0 where root is alone: nothing to relay
        return tile_nbytes == 0 ? 0 : (span.nbytes + tile_nbytes - 1) / tile_nbytes;
    }
    __device__ bool has(u64 tile) const { return tile < tiles(); }  // also false for one before the first

    // The piece of a tile that `rank`, not root, relays.
    __device__ Span piece(u64 tile, int rank) const {
        const int number = (rank - root - 1 + channel.team.size) % channel.team.size;
        const u64 begin = smaller((tile * peers() + number) * piece_nbytes, span.nbytes);
        const u64 nbytes = smaller(piece_nbytes, span.nbytes - begin);
        return Span{span.address + begin, nbytes, nbytes};
    }

    __device__ bool run() {
        for (u64 step = 0; tiles() != 0 && step < tiles() + 2; ++step)
            if (is_root() ? !scatter(step) : !pass_on(step - 1, step - 2)) return false;
        return true;
    }

    // Root's step.
    __device__ bool scatter(u64 tile) {
        if (!has(tile)) return true;
        if (!chunks.await(1, [&](u32, int peer) { return chunks.wait_for_place(0, peer, tile); })) return false;
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const Span from = piece(tile, channel.peer(j));
            copy_out(crew, chunks.place(0, channel.peer(j), root, tile), from);
        }
        __syncthreads();
        if (!channel.is_peer(int(threadIdx.x))) return true;
        fence_sys();
        chunks.signal_stored(0, int(threadIdx.x), tile);
        return true;
    }

    // A peer's step: keep and relay its piece of one tile, collect the others' pieces of an earlier one.
    __device__ bool pass_on(u64 relayed, u64 collected) {
        const bool ready = chunks.await(2, [&](u32 kind, int peer) {
            if (kind == 1) return peer == root || !has(collected) || chunks.wait_for_chunk(1, peer, collected);
            if (!has(relayed)) return true;
            return peer == root ? chunks.wait_for_chunk(0, root, relayed) : chunks.wait_for_place(1, peer, relayed);
        });
        if (!ready) return false;
        const Crew crew(2 * peers());  // the relaying crews share root's piece, a crew collects one peer's
        for (u32 job = crew.first_job; job < 2u * peers(); job += crew.next_job) {
            const int peer = channel.peer(int(job) % peers());
            if (job < u32(peers()) && has(relayed)) relay(crew, relayed, peer);
            if (job >= u32(peers()) && has(collected) && peer != root) copy_in(crew, 1, peer, piece(collected, peer), collected);
        }
        __syncthreads();
        const int peer = int(threadIdx.x);
        if (!channel.is_peer(peer)) return true;
        fence_sys();
        if (has(relayed) && peer == root) chunks.signal_read(0, root, relayed);
        if (has(relayed) && peer != root) chunks.signal_stored(1, peer, relayed);
        if (has(collected) && peer != root) chunks.signal_read(1, peer, collected);
        return true;
    }

    // This rank's piece: to the buffer (the crew of `peer` == root), or to a peer's ring.
    __device__ void relay(const Crew& crew, u64 tile, int peer) {
        const Span mine = piece(tile, me());
        if (peer == root) return copy_in(crew, 0, root, mine, tile);
        const Pack* from = chunks.place(0, me(), root, tile);
        Pack* place = chunks.place(1, peer, me(), tile);
        move_packs(
            crew.member, packs_in(mine.nbytes), crew.members,
            [&](u64 i) { return get_pack(from + i); },
            [&](u64 i, Pack pack) { put_pack(place + i, pack); });
    }

    __device__ void copy_out(const Crew& crew, Pack* place, const Span& from) {
        move_packs(
            crew.member, packs_in(from.nbytes), crew.members,
            [&](u64 i) { return load_pack(from.address, i, from.nbytes); },
            [&](u64 i, Pack pack) { put_pack(place + i, pack); });
    }

    __device__ void copy_in(const Crew& crew, int ring, int source, const Span& to, u64 tile) {
        const Pack* place = chunks.place(ring, me(), source, tile);
        move_packs(
            crew.member, packs_in(to.nbytes), crew.members,
            [&](u64 i) { return get_pack(place + i); },
            [&](u64 i, Pack pack) { store_pack(to.address, i, to.nbytes, pack); });
    }
};

__global__ void __launch_bounds__(kMaxThreads, 1) bcast_two_shot(const __grid_constant__ MoveArgs args) {
    Channel channel(args.team);
    const Chunks chunks(channel);
    const Span span = part_of(args.recv, args.nbytes);
    const int relays = args.team.size > 1 ? args.team.size - 1 : 1;
    Relay{channel, chunks, args.root, span, share_of(span.nbytes, relays, chunks.nbytes)}.run();
    channel.leave();
}
