// Bcast: every rank's buffer becomes root's.
//
//   bcast_direct            root sends the whole message to every peer: one trip, (size - 1) times the bytes.
//   bcast_two_shot_lines    root cuts it into size - 1 pieces and sends one to each peer; a peer stores its piece and relays it
//                           to the others. Each rank sends and receives the message about once.
//   bcast_chain_lines       large: from rank to rank, as lines (line_chain.cuh).
//   bcast_chain             the same as pieces (chain.cuh).
//
// In all forms the buffer is args.recv on every rank; root only reads it.
// Launch: one block for each channel in use, up to kMaxThreads threads.
#include "protocol/chain.cuh"
#include "exchange/exchange.cuh"
#include "protocol/line_chain.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) bcast_direct(const __grid_constant__ MoveArgs args) {
    const Team& team = args.team;
    const Span whole = part_of(args.recv, args.nbytes), nothing{args.recv, 0, 0};
    exchange_all<kLong>(
        team,
        [&](int rank) { return team.rank == args.root && rank != args.root ? whole : nothing; },
        [&](int rank) { return team.rank != args.root && rank == args.root ? whole : nothing; }, false);
}

// This block's part of the buffer, in one piece for each peer.
struct Pieces {
    const int root, size;
    const Span span;
    const u64 piece_nbytes;

    __device__ explicit Pieces(const MoveArgs& args)
        : root(args.root), size(args.team.size), span(part_of(args.recv, args.nbytes)),
          piece_nbytes(share_of(span.nbytes, size > 1 ? size - 1 : 1, ~0ull)) {}

    // The piece that `rank`, not root, relays.
    __device__ Span piece(int rank) const {
        const int number = (rank - root - 1 + size) % size;
        const u64 begin = smaller(number * piece_nbytes, span.nbytes), nbytes = smaller(piece_nbytes, span.nbytes - begin);
        return Span{span.address + begin, nbytes, nbytes};
    }
};

// The peers pass on each row of their pieces as soon as it arrives.
template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 2) bcast_two_shot_lines(const __grid_constant__ MoveArgs args) {
    const Pieces pieces(args);
    const u32 peers = u32(args.team.size - 1);
    const int me = args.team.rank;
    const Crew crew(peers);
    await_previous(pieces.piece_nbytes ^ crew.members ^ Channel::dependency(args.team));
    Channel channel(args.team);
    Lines lines(channel);
    const u32 member = crew.member / 32, members = crew.members / 32;
    const u64 outboxes = lines.outboxes([&](int rank) { return rank != args.root; });
    bool ok = channel.await_slots();
    const Span mine = me == args.root ? Span{nullptr, 0, 0} : pieces.piece(me);
    for (u32 row = threadIdx.x / 32; ok && row < rows_in(mine.nbytes); row += blockDim.x / 32) {
        Pack pack;
        ok = lines.receive(args.root, row, pack);
        if (ok) lines.send_to_each(outboxes, row, pack);
        if (ok) lines.store(mine.address, row, mine.nbytes, pack);
    }
    for (u32 j = crew.first_job; ok && j < peers; j += crew.next_job) {
        const int peer = channel.peer(j);
        if (peer == args.root) continue;
        const Span piece = pieces.piece(peer);
        if (me == args.root) lines.send_message(member, members, lines.outbox(peer), piece.address, piece.nbytes);
        else ok = lines.receive_message(member, members, peer, piece.address, piece.nbytes, piece.kept);
    }
    channel.leave();
}

// Copies a piece to the buffer and to the next rank.
__device__ void pass_on(const Crew& crew, const Pack* from, char* here, Pack* to, u64 nbytes) {
    const auto get = [&](u64 i) { return get_pack(from + i); };
    const u64 whole = u64(here) % kPackNbytes == 0 ? nbytes / kPackNbytes : 0;
    move_packs<4, u32>(crew.member, whole, crew.members, get, [&](u64 i, Pack pack) {
        store_pack<true>(here, i, nbytes, pack);
        put_pack(to + i, pack);
    });
    move_packs<1, u32>(whole + crew.member, packs_in(nbytes), crew.members, get, [&](u64 i, Pack pack) {
        store_pack(here, i, nbytes, pack);
        put_pack(to + i, pack);
    });
}

// This rank's neighbours in the chain, which begins at root.
__device__ inline Hop hop_of(const MoveArgs& args) {
    const int me = args.team.rank, size = args.team.size, next = (me + 1) % size;
    return Hop{me == args.root ? kNoRank : (me + size - 1) % size, next == args.root ? kNoRank : next};
}

struct KeepLine {
    static constexpr bool kHasOwn = false;
    __device__ Pack operator()(Pack came, Pack) const { return came; }
};

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) bcast_chain_lines(const __grid_constant__ MoveArgs args) {
    Channel channel(args.team);
    const int size = args.team.size;
    const ChainEnds ends{args.recv, args.recv, size > 1 ? args.nbytes : 0, hop_of(args), (args.root + size - 1) % size, false};
    LineChain<KeepLine> chain(channel, ends, KeepLine());
    channel.leave(chain.run());
    chain.leave();
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) bcast_chain(const __grid_constant__ MoveArgs args) {
    Channel channel(args.team);
    const Hop hop = hop_of(args);
    const Span part = part_of(args.recv, args.nbytes);
    const auto move = [&](const Crew& crew, u32, u64 begin, u64 nbytes, const Pack* from, Pack* to) {
        char* here = part.address + begin;
        if (hop.from == kNoRank) copy_message(crew.member, crew.members, here, to, nbytes);
        else if (hop.to == kNoRank) copy_here(crew.member, crew.members, from, here, nbytes);
        else pass_on(crew, from, here, to, nbytes);
    };
    if (args.team.size > 1) Chain(channel, part.nbytes).run(&hop, 1, move);
    channel.leave();
}
