// Bcast: every rank's buffer becomes root's.
//
//   bcast_direct    root sends the whole message to every peer: one trip, (size - 1) times the bytes.
//   bcast_two_shot  root cuts each tile into size - 1 pieces and sends one to each peer; a peer keeps its
//                   piece and relays it to the others. Each rank sends and receives the message about once.
//
// In both, the buffer is args.recv on every rank; root only reads it.
#include "exchange.cuh"

__global__ void __launch_bounds__(kMaxThreads) bcast_direct(const __grid_constant__ MoveArgs args) {
    const Team& team = args.team;
    const Span whole = part_of(args.recv, args.nbytes), nothing{args.recv, 0, 0};
    exchange_all(
        team,
        [&](int rank) { return team.rank == args.root && rank != args.root ? whole : nothing; },
        [&](int rank) { return team.rank != args.root && rank == args.root ? whole : nothing; });
}

// Steps of tile t: (t) root scatters it into ring 0, (t + 1) peers keep and relay into ring 1,
// (t + 2) peers collect what the others relayed. Three tiles are on their way at a time.
struct Relay {
    Channel& channel;
    Chunks chunks;
    const int root;
    const Span span;  // this block's part of the buffer

    __device__ int peers() const { return channel.team.size - 1; }
    __device__ bool is_root() const { return channel.team.rank == root; }

    // The piece of a tile that `rank`, not root, relays.
    __device__ Span piece(u64 tile, int rank) const {
        const int number = (rank - root - 1 + channel.team.size) % channel.team.size;
        const u64 begin = smaller((tile * peers() + number) * chunks.nbytes, span.nbytes);
        const u64 nbytes = smaller(chunks.nbytes, span.nbytes - begin);
        return Span{span.address + begin, nbytes, nbytes};
    }

    __device__ bool run() {
        const u64 tile_nbytes = u64(chunks.nbytes) * peers(), tiles = (span.nbytes + tile_nbytes - 1) / tile_nbytes;
        for (u64 step = 0; step < tiles + 2; ++step) {
            if (is_root() && step < tiles && !scatter(step)) return false;
            if (!is_root() && step >= 1 && step < tiles + 1 && !relay(step - 1)) return false;
            if (!is_root() && step >= 2 && !collect(step - 2)) return false;
        }
        return true;
    }

    __device__ bool scatter(u64 tile) {
        const int rank = int(threadIdx.x);
        const bool mine = channel.is_peer(rank);
        if (!channel.everyone(!mine || chunks.wait_for_place(0, rank, tile))) return false;
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const Span from = piece(tile, channel.peer(j));
            Pack* place = chunks.place(0, channel.peer(j), root, tile);
            for (u64 i = crew.member; i < packs_in(from.nbytes); i += crew.members)
                put_pack(place + i, load_pack(from.address, i, from.nbytes));
        }
        __syncthreads();
        if (mine) chunks.signal_stored(0, rank, tile);
        return true;
    }

    __device__ bool relay(u64 tile) {
        const int rank = int(threadIdx.x), me = channel.team.rank;
        const bool other = channel.is_peer(rank) && rank != root;
        const bool ready = rank == root ? chunks.wait_for_chunk(0, root, tile)
                                        : !other || chunks.wait_for_place(1, rank, tile);
        if (!channel.everyone(ready)) return false;
        const Span to = piece(tile, me);
        const Pack* place = chunks.place(0, me, root, tile);
        for (u64 i = threadIdx.x; i < packs_in(to.nbytes); i += blockDim.x) {
            const Pack pack = get_pack(place + i);
            store_pack(to.address, i, to.nbytes, pack);
            for (int j = 0; j < peers(); ++j)
                if (channel.peer(j) != root) put_pack(chunks.place(1, channel.peer(j), me, tile) + i, pack);
        }
        __syncthreads();
        if (rank == root) chunks.signal_read(0, root, tile);
        if (other) chunks.signal_stored(1, rank, tile);
        return true;
    }

    __device__ bool collect(u64 tile) {
        const int rank = int(threadIdx.x);
        const bool other = channel.is_peer(rank) && rank != root;
        if (!channel.everyone(!other || chunks.wait_for_chunk(1, rank, tile))) return false;
        const Crew crew(peers());
        for (u32 j = crew.first_job; j < u32(peers()); j += crew.next_job) {
            const int peer = channel.peer(j);
            if (peer == root) continue;
            const Span to = piece(tile, peer);
            const Pack* place = chunks.place(1, channel.team.rank, peer, tile);
            for (u64 i = crew.member; i < packs_in(to.nbytes); i += crew.members)
                store_pack(to.address, i, to.nbytes, get_pack(place + i));
        }
        __syncthreads();
        if (other) chunks.signal_read(1, rank, tile);
        return true;
    }
};

__global__ void __launch_bounds__(kMaxThreads) bcast_two_shot(const __grid_constant__ MoveArgs args) {
    Channel channel(args.team);
    Relay{channel, Chunks(channel), args.root, part_of(args.recv, args.nbytes)}.run();
    channel.leave();
}
