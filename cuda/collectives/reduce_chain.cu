// Reduce, large: partial results go along the ranks in rank order, as a chain, and the result goes to root.
//
//   reduce_chain        as pieces (protocol/chain.cuh)
//   reduce_chain_lines  as lines (protocol/line_chain.cuh)
//
// A rank folds its own vector to what came. Root is rank 0 or the last rank, and every link carries the vector once; or
// root is rank 1, whose contribution goes to rank 0, which folds both. Any other root would receive both a partial
// result and the result through the same words and places of a lane.
//
// Partial results are elements. Half types are summed in float (reduce_ops.cuh), and would be rounded on the way; a piece
// could cut an element that does not divide a pack. For these there is no chain.
// Launch: one block for each channel in use, kMaxThreads threads.
#include "protocol/line_chain.cuh"
#include "reduction/order.cuh"

// Folds a rank's own elements of a piece to those that came, in rank order.
template <class T, class Op>
struct FoldOn {
    const Crew& crew;
    const Pack* came;
    const char* own;
    char* result;
    const u64 nbytes;
    const bool own_first;
    const int finished;  // the number of ranks at the last rank; 1: a partial result

    __device__ void run() const {
        const u64 whole = (u64(own) | u64(result)) % kPackNbytes == 0 ? nbytes / kPackNbytes : 0;
        fold<true, sizeof(T) == 1 ? 2 : 4>(crew.member, u32(whole));
        fold<false, 1>(u32(whole) + crew.member, u32(packs_in(nbytes)));
    }

  private:
    // kAtOnce packs of each vector are loaded before the first is used.
    template <bool kWhole, int kAtOnce>
    __device__ void fold(u32 first, u32 end) const {
#pragma unroll 1
        for (u32 i = first; i < end; i += kAtOnce * crew.members) {
            Pack packs[kAtOnce][2];
#pragma unroll
            for (int f = 0; f < kAtOnce; ++f) {
                const u32 at = i + f * crew.members;
                if (at < end) packs[f][0] = get_pack(came + at);
                if (at < end) packs[f][1] = get_pack<kWhole>(own, at, nbytes);
            }
#pragma unroll
            for (int f = 0; f < kAtOnce; ++f) {
                const u32 at = i + f * crew.members;
                if (at < end) put_pack<kWhole>(result, at, nbytes, fold_two<T, Op>(packs[f][own_first], packs[f][!own_first], finished));
            }
        }
    }
};

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_chain(const __grid_constant__ ReduceArgs args) {
    static_assert(kGroupPacks<T> == 1 && sizeof(typename AccumulatorOf<T>::type) == sizeof(T));
    Channel channel(args.team);
    const Order order{args.root, args.team.size};
    const int me = args.team.rank;
    const Hop hops[] = {order.hop(me), Hop{order.last(), kNoRank}};
    const bool is_last = me == order.last();
    const Part part(args.nbytes, gridDim.x, blockIdx.x);
    const auto move = [&](const Crew& crew, u32 hop, u64 begin, u64 nbytes, const Pack* from, Pack* to) {
        const char* own = args.send + part.begin + begin;
        char* result = to != nullptr ? reinterpret_cast<char*>(to) : args.recv + part.begin + begin;
        if (hop == 1) copy_here(crew.member, crew.members, from, result, nbytes);
        else if (hops[0].from == kNoRank) copy_message(crew.member, crew.members, own, result, nbytes);
        else FoldOn<T, Op>{crew, from, own, result, nbytes, hops[0].from > me, is_last ? args.team.size : 1}.run();
    };
    Chain(channel, part.nbytes).run(hops, me == args.root && !is_last ? 2 : 1, move);
    channel.leave();
}

template <class T, class Op>
struct FoldLine {
    static constexpr bool kHasOwn = true;
    bool own_first;
    int finished;

    __device__ Pack operator()(Pack came, Pack own) const {
        return fold_two<T, Op>(own_first ? own : came, own_first ? came : own, finished);
    }
};

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) reduce_chain_lines(const __grid_constant__ ReduceArgs args) {
    static_assert(kGroupPacks<T> == 1 && sizeof(typename AccumulatorOf<T>::type) == sizeof(T));
    Channel channel(args.team);
    const Order order{args.root, args.team.size};
    const int me = args.team.rank, last = order.last();
    const Hop hop = order.hop(me);
    const FoldLine<T, Op> fold{hop.from > me, me == last ? args.team.size : 1};
    const ChainEnds ends{args.send, args.recv, args.nbytes, hop, last, me == args.root && me != last};
    LineChain<FoldLine<T, Op>> chain(channel, ends, fold);
    channel.leave(chain.run());
    chain.leave();
}
