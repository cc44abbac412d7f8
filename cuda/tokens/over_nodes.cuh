// Token shuffles over nodes: the arguments of their kernels, and the words by which ranks announce their
// choices.
//
// A token crosses once to each node that has experts of it, to one rank there, its *proxy*, which
// dispatches it inside the node as if it was its own. A proxy has *slots*: its own tokens are in
// slot 0, those of one rank of another node in each other one. In a slot there are only tokens with
// choices on this node, in their order: the *number* of a token is its place there. To kernels
// inside the node (dispatch.cu, combine.cu, collect.cu) token `slot * max_tokens + number` is the
// proxy's.
//
// Ranks are those of the communicator, except for *local* ones; buckets are those of this node's
// ranks.
// Twin: CrossingArgs of pyncclx/tokens/parameters.py.
#pragma once
#include "tokens/shuffle.cuh"

constexpr u64 kNoWord = ~u64(0);

struct CrossingArgs {
    Team team;  // this rank alone, for error records: its lease is a header
    // What stays the same from call to call.
    const u32* places;    // of all experts, as expert_replica reads them
    const int* local_of;  // [size]: a rank's number in this node, -1: it is on another one
    const int* node_of;   // [size]
    const int* proxy_of;  // [size]: the local rank that has a rank's tokens in this node,
    const int* slot_of;   //   and in which slot
    const int* first;     // [local_size + 1]: the first bucket of each local rank
    u64* words;           // [size][1 + max_tokens * k]: of each rank its number of tokens, and its
                          // choices
    int* matrix;          // [size][buckets]: how many choices of a rank
    int* numbers;         // [size][max_tokens]: of tokens on this node, -1: it has no choice here
    char* inbox;          // [slots][max_tokens] rows: what comes from other nodes, and this rank's
                          // own for its node
    char* outbox;         // [other nodes][max_tokens] rows: what goes there
    i64 rank, size, node, nodes, local_rank, local_size, slots;
    i64 experts, replicas, k, max_tokens, capacity, buckets, by_source, drops;
    // Of a call.
    const void* chosen;    // [token_count][k] int or i64; -1: none
    const float* weights;  // [token_count][k]; null: all 1
    const char* tokens;    // [token_count] rows
    char* out;             // [token_count] rows, or [token_count][k] float
    i64 token_count;
    i64 expert_nbytes;     // 4 or 8
    i64 row_nbytes;        // bytes of a row in inbox and outbox
    // Of a handle, written by number_choices and place_choices.
    u64* routes;       // [slots * max_tokens][k]
    u32* ways;         // [local_size][slots * max_tokens][k]
    i64* counts;       // as of DispatchArgs, but for ranks of the communicator; so are the
                       // following
    i64* offsets;
    i64* total;
    i64* dropped;      // [size]
    int* row_experts;
    float* row_weights;
    int* where;        // [nodes][max_tokens]: the number of each token of this rank on a node, -1:
                       // it has no choice there
    i64* crossing;     // [nodes + slots]: how many tokens of this rank a node gets, and how many
                       // there are in a slot

    __device__ i64 words_of_rank() const { return 1 + max_tokens * k; }
    __device__ const u64* choices_of(i64 source) const {
        return words + source * words_of_rank() + 1;
    }
    __device__ i64 tokens_of(i64 source) const { return i64(words[source * words_of_rank()]); }

    // Where a token's row is on its way to a node, or from it; `number` is its number there.
    __device__ char* on_way(i64 to, i64 number) const {
        if (to == node) return inbox + number * row_nbytes;
        return outbox + ((to - (to > node)) * max_tokens + number) * row_nbytes;
    }
};

// A choice's place and weight; of no choice the place is that of no expert.
__device__ __forceinline__ u64 make_choice(u32 place, float weight) {
    return u64(place) << 32 | bits_as<u32>(weight);
}
__device__ __forceinline__ u32 choice_place_of(u64 word) { return u32(word >> 32); }
__device__ __forceinline__ float choice_weight_of(u64 word) { return bits_as<float>(u32(word)); }
