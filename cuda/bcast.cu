// Bcast: every rank's buffer becomes root's.
//
//   bcast_direct            root sends the whole message to every peer: one trip, (size - 1) times the bytes.
//   bcast_two_shot_packets  root cuts it into size - 1 pieces and sends one to each peer; a peer keeps its piece and
//                           relays it to the others. Each rank sends and receives the message about once.
//   bcast_two_shot          large: the same, tile by tile. Pieces go straight to their place if all peers' buffers are
//                           in windows, else as chunks.
//
// In all, the buffer is args.recv on every rank; root only reads it.
#include "exchange.cuh"
#include "reach.cuh"

__global__ void __launch_bounds__(kMaxThreads, 1) bcast_direct(const __grid_constant__ MoveArgs args) {
    const Team& team = args.team;
    const Span whole = part_of(args.recv, args.nbytes), nothing{args.recv, 0, 0};
    exchange_all(
        team,
        [&](int rank) { return team.rank == args.root && rank != args.root ? whole : nothing; },
        [&](int rank) { return team.rank != args.root && rank == args.root ? whole : nothing; });
}

// This block's part of the buffer, in tiles of one piece for each peer.
struct Pieces {
    const int root, size;
    const Span span;
    const u64 piece_nbytes;

    __device__ Pieces(const MoveArgs& args, u64 most)
        : root(args.root), size(args.team.size), span(part_of(args.recv, args.nbytes)),
          piece_nbytes(share_of(span.nbytes, size > 1 ? size - 1 : 1, most)) {}

    __device__ u64 tiles() const {
        const u64 tile_nbytes = piece_nbytes * (size - 1);  // 0 where root is alone: nothing to relay
        return tile_nbytes == 0 ? 0 : (span.nbytes + tile_nbytes - 1) / tile_nbytes;
    }
    // The piece of a tile that `rank`, not root, relays.
    __device__ Span piece(u64 tile, int rank) const {
        const int number = (rank - root - 1 + size) % size;
        const u64 begin = smaller((tile * (size - 1) + number) * piece_nbytes, span.nbytes);
        const u64 nbytes = smaller(piece_nbytes, span.nbytes - begin);
        return Span{span.address + begin, nbytes, nbytes};
    }
};

// The peers pass their pieces on at once, pack by pack.
__global__ void __launch_bounds__(kMaxThreads, 1) bcast_two_shot_packets(const __grid_constant__ MoveArgs args) {
    Channel channel(args.team);
    Packets packets(channel);
    const Pieces pieces(args, ~0ull);
    const u32 peers = u32(args.team.size - 1);
    const bool is_root = args.team.rank == args.root;
    const Crew crew(peers);
    bool ok = packets.await_free();
    const Span mine = is_root ? Span{nullptr, 0, 0} : pieces.piece(0, args.team.rank);
    for (u64 i = threadIdx.x; ok && i < packs_in(mine.nbytes); i += blockDim.x) {
        Pack pack;
        ok = packets.receive(args.root, u32(i) * 2, pack);
        for (u32 j = 0; ok && j < peers; ++j)
            if (channel.peer(j) != args.root) packets.send(packets.outbox(channel.peer(j)), u32(i) * 2, pack);
        if (ok) store_pack(mine.address, i, mine.nbytes, pack);
    }
    for (u32 j = crew.first_job; j < peers; j += crew.next_job) {
        const int peer = channel.peer(j);
        if (peer == args.root) continue;
        const Span piece = pieces.piece(0, peer);
        for (u64 i = crew.member; ok && i < packs_in(piece.nbytes); i += crew.members) {
            if (is_root) {
                packets.send(packets.outbox(peer), u32(i) * 2, load_pack(piece.address, i, piece.nbytes));
                continue;
            }
            Pack pack;
            ok = packets.receive(peer, u32(i) * 2, pack);
            if (ok) store_pack(piece.address, i, piece.nbytes, pack);
        }
    }
    channel.leave();
}

// As chunks: tile t comes from root through ring 0, each peer relays its piece through ring 1.
struct Relay {
    Channel& channel;
    Chunks chunks;
    const Pieces pieces;

    __device__ int me() const { return channel.team.rank; }
    __device__ int peers() const { return channel.team.size - 1; }

    // Root has a group for each peer. On a peer half of the warps relays, the others collect, a group for each peer. With
    // one warp that does all: tile t in rounds t + 1 and t + 2.
    __device__ bool run() {
        const u32 warps = blockDim.x / 32, relays = warps / 2, transfers = u32(peers());
        bool ok = true;
        if (me() == pieces.root || relays == 0) ok = work(Crew(relays == 0 ? 1 : transfers), 0, transfers + 1);
        else if (threadIdx.x / 32 < relays) ok = work(Crew(1, 0, relays, 1), 0, 1);
        else ok = work(Crew(transfers, relays, warps, 2), 1, transfers);
        return channel.everyone(ok);
    }

    // Root's jobs: one for each peer. A peer's: 0 relays, then one for each peer collects.
    __device__ bool work(const Crew& crew, u32 first, u32 jobs) {
        const u64 tiles = pieces.tiles();
        bool ok = true;
        for (u64 round = 0; ok && round < tiles + 2; ++round)
            for (u32 i = crew.first_job; ok && i < jobs; i += crew.next_job) {
                const u32 job = i + first;
                if (me() == pieces.root) ok = round >= tiles || job == u32(peers()) || scatter(crew, round, channel.peer(job));
                else if (job == 0) ok = round < 1 || round - 1 >= tiles || relay(crew, round - 1);
                else ok = round < 2 || collect(crew, round - 2, channel.peer(job - 1));
            }
        return ok;
    }

    __device__ bool scatter(const Crew& crew, u64 tile, int peer) {
        const Span from = pieces.piece(tile, peer);
        return chunks.store(
            crew, 0, peer, tile, [&](Pack* to) { copy_message(crew.member, crew.members, from.address, to, from.nbytes); });
    }

    __device__ bool collect(const Crew& crew, u64 tile, int peer) {
        if (peer == pieces.root) return true;
        const Span to = pieces.piece(tile, peer);
        return chunks.take(
            crew, 1, peer, tile, [&](const Pack* from) { copy_here(crew.member, crew.members, from, to.address, to.nbytes); });
    }

    // This rank's piece, to the buffer and to the rings of the others.
    __device__ bool relay(const Crew& crew, u64 tile) {
        const int peer = int(crew.member), root = pieces.root;
        bool ready = true;
        if (peer == root) ready = chunks.wait_for_chunk(0, root, tile);
        else if (channel.is_peer(peer)) ready = chunks.wait_for_place(1, peer, tile);
        if (!crew.everyone(ready)) return false;
        const Span mine = pieces.piece(tile, me());
        const Pack* from = chunks.place(0, me(), root, tile);
        for (u64 i = crew.member; i < packs_in(mine.nbytes); i += crew.members) {
            const Pack pack = get_pack(from + i);
            store_pack(mine.address, i, mine.nbytes, pack);
            for (int j = 0; j < peers(); ++j)
                if (channel.peer(j) != root) put_pack(chunks.place(1, channel.peer(j), me(), tile) + i, pack);
        }
        crew.everyone(true);
        if (!channel.is_peer(peer)) return true;
        if (peer == root) {
            chunks.signal_read(0, root, tile);
        } else {
            fence_sys();
            chunks.signal_stored(1, peer, tile);
        }
        return true;
    }
};

// Straight to its place: the counters of the rings tell how far root, and the others, have come.
struct StraightRelay {
    Channel& channel;
    Chunks chunks;
    const Pieces pieces;
    const Reach& reach;
    char* const buffer;

    __device__ bool run() {
        const u64 tiles = pieces.tiles();
        const bool is_root = channel.team.rank == pieces.root;
        for (u64 tile = 0; tile < tiles; ++tile)
            if (!(is_root ? scatter(tile) : relay(tile))) return false;
        const int peer = int(threadIdx.x);
        const bool wait = tiles > 0 && !is_root && channel.is_peer(peer) && peer != pieces.root;
        return channel.everyone(!wait || chunks.wait_for_chunk(1, peer, tiles - 1));
    }

    __device__ bool scatter(u64 tile) {
        for (int j = 0; j < channel.team.size - 1; ++j) copy_to(channel.peer(j), pieces.piece(tile, channel.peer(j)));
        announce(0, tile);
        return true;
    }

    __device__ bool relay(u64 tile) {
        if (!channel.everyone(threadIdx.x != 0 || chunks.wait_for_chunk(0, pieces.root, tile))) return false;
        for (int j = 0; j < channel.team.size - 1; ++j)
            if (channel.peer(j) != pieces.root) copy_to(channel.peer(j), pieces.piece(tile, channel.team.rank));
        announce(1, tile);
        return true;
    }

    __device__ void copy_to(int peer, const Span& from) const {
        copy_message(threadIdx.x, blockDim.x, from.address, reach.recv[peer] + (from.address - buffer), from.nbytes);
    }

    __device__ void announce(int ring, u64 tile) {
        const int peer = int(threadIdx.x);
        __syncthreads();
        if (!channel.is_peer(peer) || peer == pieces.root) return;
        fence_sys();
        chunks.signal_stored(ring, peer, tile);
    }
};

// Root's link and the relays' work at the same time but for one tile; a tile is worth its fence and its signal.
constexpr u64 kMostTiles = 16, kLeastTile = 64 << 10;

__global__ void __launch_bounds__(kMaxThreads, 1) bcast_two_shot(const __grid_constant__ MoveArgs args) {
    __shared__ Reach reach;
    Channel channel(args.team);
    Packets packets(channel);
    const Chunks chunks(channel);
    const auto nobody = [](int) { return false; };
    const auto receives = [&](int rank) { return rank != args.root; };
    const Own own{nullptr, args.recv, Place{0, nullptr}, args.team.recv};
    const bool windows = args.team.windows != nullptr;  // on all ranks or on none
    bool ok = !windows || learn_reach(packets, own, nobody, receives, reach);
    if (ok && windows && reach.all) {
        const u64 part = args.nbytes / gridDim.x, tile = part / kMostTiles > kLeastTile ? part / kMostTiles : kLeastTile;
        const Pieces pieces(args, (tile / args.team.size / kPackNbytes + 1) * kPackNbytes);
        ok = StraightRelay{channel, chunks, pieces, reach, args.recv}.run();
    } else if (ok) {
        ok = Relay{channel, chunks, Pieces(args, chunks.nbytes)}.run();
    }
    channel.leave(ok && windows);
}
