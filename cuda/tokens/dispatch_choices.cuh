// The choices of few tokens: a rank looks up where its own go, sends them to all ranks, and
// receives theirs.
//
//   1. Before the previous kernel has ended, threads compute addresses (Early::find,
//      ChoiceReceiver); then they load.
//   2. place_choices looks up each choice's place; a barrier follows. recall_choices takes the
//      places of an earlier dispatch.
//   3. send_choices numbers a block's share of the choices in their buckets, and sends them as
//      packets to all ranks.
//   4. receive_choices receives those of all ranks, and counts them by rank and bucket.
#pragma once
#include "tokens/buckets.cuh"

// The address of the data that a lane sends in a step; null: past the row.
template <class From, class To>
__device__ __forceinline__ const char* find_step(
    const DispatchArgs& args, const Steps& steps, const Step& step) {
    const u64 i = step.first + threadIdx.x % 32, nbytes = u64(args.shuffle.hidden) * sizeof(From);
    return steps.holds(step)
        ? args.tokens + step.token * nbytes + i * Source<From, To>::kPacks * kPackNbytes
        : nullptr;
}

// Loads it. Past the row there must be zeros, not data of the last step, since a group of 8-bit
// floats includes them.
template <class From, class To>
__device__ __forceinline__ void load_step(
    const char* from, bool aligned, Source<From, To>& source) {
    if (from != nullptr) source.load(from, 0, aligned);
    else if constexpr (sizeof(To) == sizeof(Float8)) source = {};
}

// What a thread needs first. It is loaded while the block reads its epoch.
template <class From, class To, class Transform>
struct Early {
    Step step;                // the warp's first
    bool has_step = false;
    i64 expert = -1;          // choice with the thread's number from the last
    float weight = 1.0f;
    u64 route = kNoRow;       // route of the choice in an earlier dispatch
    Source<From, To> source;  // the step's source
    Pack pack;                // the same, transformed and rounded
    float scale = 0;

    // Computes the addresses of all that, before it may be read; null: there is none.
    __device__ void find(const DispatchArgs& args, const Steps& steps) {
        const u32 i = number_from_last();
        step = steps.step(threadIdx.x / 32);
        has_step = steps.has(threadIdx.x / 32, args.token_count);
        if (has_step) row_at = find_step<From, To>(args, steps, step);
        aligned = is_aligned(args.tokens);
        if (i >= u32(args.token_count) * u32(args.shuffle.k)) return;
        if (args.reuse) route_at = args.routes + i;
        else expert_at = static_cast<const char*>(args.experts) + i * u32(args.expert_nbytes);
        if (!args.reuse && args.weights) weight_at = args.weights + i;
    }

    __device__ u64 dependency() const {
        return u64(row_at) ^ u64(route_at) ^ u64(expert_at) ^ u64(weight_at) ^
            step.dependency() << 16;
    }

    __device__ void load(const DispatchArgs& args) {
        if (route_at) route = *route_at;
        if (expert_at) expert = expert_from(expert_at, args.expert_nbytes);
        if (weight_at) weight = *weight_at;
        if (has_step) load_step(row_at, aligned, source);
    }

    // Transforms and rounds the step's pack.
    __device__ void round(const DispatchArgs& args, const Steps& steps, const Step& step) {
        if (steps.holds(step))
            source.template transform<Transform>(
                args.transform, step.token, step.first + threadIdx.x % 32);
        pack = Cast<From, To>::round(source, scale);
    }

  private:
    const char *row_at = nullptr, *expert_at = nullptr;
    const u64* route_at = nullptr;
    const float* weight_at = nullptr;
    bool aligned = false;
};

// Looks up the places of this rank's choices; a barrier follows.
template <class Early>
__device__ void place_choices(const DispatchArgs& args, Table& table, Early& early) {
    const u32 choices = u32(args.token_count) * u32(args.shuffle.k);
    const OwnChoices own(table);
    for (u32 i = number_from_last(); i < choices; i += blockDim.x) {
        const i64 expert = i < blockDim.x ? early.expert : expert_of_choice(args, i);
        own.place[i] = place_of_choice(
            args, i, expert,
            NearPlaces::are_near(args.shuffle) ? table.few.places : args.shuffle.places);
        own.bucket[i] = bucket_of_place(args.shuffle, table, own.place[i]);
        own.weight[i] = bits_as<int>(
            i < blockDim.x     ? early.weight
                : args.weights ? args.weights[i]
                               : 1.0f);
    }
}

// Takes the places of an earlier dispatch; a barrier follows.
template <class Early>
__device__ void recall_choices(const DispatchArgs& args, Table& table, const Early& early) {
    for (u32 i = number_from_last(); i < u32(args.token_count) * u32(args.shuffle.k);
         i += blockDim.x) {
        const u64 route = i < blockDim.x ? early.route : args.routes[i];
        OwnChoices(table).place[i] = route == kNoRow ? kNoPlace : int(route_place(route));
    }
}

// Numbers this block's share of its rank's choices within their buckets, a warp each, and sends
// them to all ranks.
__device__ void send_choices(const DispatchArgs& args, const FewTokens& few, Table& table) {
    const u32 choices = u32(args.token_count) * u32(args.shuffle.k), lane = threadIdx.x % 32,
              warps = blockDim.x / 32;
    const OwnChoices own(table);
    for (u32 n = number_from_last() / 32; n * gridDim.x + blockIdx.x < choices; n += warps) {
        const u32 i = n * gridDim.x + blockIdx.x;
        const int bucket = own.bucket[i];
        u32 number = 0;
        for (u32 j = lane * 4; j < i; j += 32 * 4) {
            const Four four = own.buckets(j);
#pragma unroll
            for (u32 f = 0; f < 4; ++f) number += u32(j + f < i) & u32(four.each[f] == bucket);
        }
        number = __reduce_add_sync(kWholeWarp, number);
        const u64 word = bucket < 0
            ? kNoRow
            : choice_word(u32(own.place[i]), number, bits_as<float>(own.weight[i]));
        if (int(lane) < args.shuffle.team.size)
            few.send_word(int(lane), u32(args.shuffle.words_at) + 1 + n, word);
    }
}

// Sets all counts to 0; a barrier follows.
__device__ void clear_counts(const Shuffle& shuffle, Table& table) {
    if (shuffle.few_tokens == 0) return;  // then the matrix may be too small
#pragma unroll 1
    for (u32 i = threadIdx.x; i < u32(shuffle.team.size) * u32(shuffle.buckets); i += blockDim.x)
        table.few.matrix[i] = 0;
}

// The choices that a thread receives: number, number + together … of `source`.
struct ChoiceReceiver {
    u32 together = 1, source = 0, number = ~0u;
    u32 block = 0, position = 0;  // the block that sends the first, and where in its slot

    ChoiceReceiver() = default;
    __device__ explicit ChoiceReceiver(const Shuffle& shuffle)
        : together(blockDim.x / u32(shuffle.team.size)),
          source(threadIdx.x % u32(shuffle.team.size)) {
        const u32 i = threadIdx.x / u32(shuffle.team.size), of_block = i / gridDim.x;
        if (i < together) number = i;
        block = i - of_block * gridDim.x;
        position = u32(shuffle.words_at) + 1 + of_block;
    }

    __device__ u64 dependency() const {
        return u64(source ^ together) << 32 ^ number ^ u64(block ^ position) << 16;
    }
};

// Receives how many tokens all ranks have, and the choices of ranks that have few, and counts
// these. False: leave.
__device__ bool receive_choices(
    const Shuffle& shuffle, const FewTokens& few, Table& table, const ChoiceReceiver& receiver) {
    const u32 source = receiver.source, each = u32(shuffle.few_tokens) * u32(shuffle.k);
    u32 i = receiver.number;
    u64 tokens = 0, word = 0;
    bool ok = few.receive_choice(
        int(source), i, few.packet_of_block(int(source), receiver.block, receiver.position), tokens,
        word);
    if (i == 0) table.tokens[source] = i64(tokens);
#pragma unroll 1
    for (const u32 choices = few.choices_of(tokens); ok && i < choices;) {
        table.few.words[source * each + i] = word;
        if (is_choice(word))
            atomicAdd(
                &table.few.matrix
                     [source * u32(shuffle.buckets) +
                      u32(bucket_of(shuffle, table, choice_place(word)))],
                1);
        i += receiver.together;
        if (i < choices) ok = few.receive_word(int(source), few.choice(int(source), i), word);
    }
    return Channel::everyone(ok);
}
