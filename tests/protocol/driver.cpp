// Runs random sequences of collectives on ranks that are threads, and checks every result: `driver ranks=3 seed=7 …`.
//
// Made for the sanitizers: ThreadSanitizer sees all ranks, and each CUDA thread as a thread of its own. Between two
// calls the ranks do not meet, so each runs ahead as far as the protocol lets it. Results are compared with a loop
// over the ranks; every message names the call, the rank and the element. Exit status: 0, or see world.h.
#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/allgather.cu"
#include "collectives/allgatherv.cu"
#include "collectives/allreduce.cu"
#include "collectives/alltoall.cu"
#include "collectives/alltoallv.cu"
#include "collectives/alltoallv_segments.cu"
#include "collectives/barrier.cu"
#include "collectives/bcast.cu"
#include "messages/partitioned.cu"
#include "messages/point_to_point.cu"
#include "tokens/collect.cu"
#include "tokens/combine.cu"
#include "tokens/dispatch.cu"
#include "collectives/gather.cu"
#include "collectives/gatherv.cu"
#include "collectives/reduce.cu"
#include "collectives/reduce_chain.cu"
#include "collectives/reduce_scatter.cu"
#include "collectives/reduce_scatter_block.cu"
#include "collectives/scan.cu"
#include "collectives/scatter.cu"
#include "collectives/scatterv.cu"

#include "messages.h"
#include "blocks.h"
#include "device.h"
#include "moves.h"
#include "partitioned.h"
#include "prefixes.h"
#include "reductions.h"
#include "rows.h"
#include "segments.h"
#include "shuffles.h"
#include "talk.h"

#ifdef MUTATIONS
int mutation = 0;  // which of the planted errors is switched on; the kernels under test declare it
#endif

struct Option {
    const char* name;
    void (*set)(Settings&, const char* value);
};

#define NUMBER(member) \
    {#member, [](Settings& s, const char* value) { s.member = decltype(s.member)(strtoull(value, nullptr, 0)); }}
const Option kOptions[] = {
    NUMBER(ranks), NUMBER(seed), NUMBER(calls), NUMBER(hostile), NUMBER(epoch), NUMBER(patience_s),
    NUMBER(channels), NUMBER(slot_packets), NUMBER(chunk_nbytes), NUMBER(slot_rows), NUMBER(nbytes),
    NUMBER(lines_offset), NUMBER(packets_offset), NUMBER(rings_offset),
#ifdef MUTATIONS
    {"mutation", [](Settings&, const char* value) { mutation = atoi(value); }},
#endif
};

Settings parse(int argc, char** argv) {
    Settings settings;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
        const auto named = [&](const Option& option) { return name == option.name; };
        const Option* option = std::find_if(std::begin(kOptions), std::end(kOptions), named);
        if (option == std::end(kOptions) || name == argument) die(2, "what is %s?", argv[i]);
        option->set(settings, argv[i] + name.size() + 1);
    }
    return settings;
}

Team team_of(const World& world, int rank, Watch* watch) {
    const Settings& s = world.settings;
    Team team{};
    team.rank = rank;
    team.size = s.ranks;
    team.channels = s.channels;
    team.slot_packets = s.slot_packets;
    team.chunk_nbytes = s.chunk_nbytes;
    team.slot_rows = s.slot_rows;
    team.lines_offset = s.lines_offset;
    team.packets_offset = s.packets_offset;
    team.rings_offset = s.rings_offset;
    team.timeout_ns = u64(s.patience_s * 1e9);
    team.watch = watch;
    team.windows = world.windows;
    std::copy(world.leases.begin(), world.leases.end(), team.base);
    return team;
}

struct Operation {
    void (*make)(Call&);
    bool is_alone;
};

// Operations of one kernel, which may be launched early, and the others.
const Operation kOperations[] = {
    {barrier, false}, {bcast, false}, {allgather, false}, {alltoall, false}, {alltoall, false}, {alltoallv, true},
    {alltoallv, true}, {allreduce<float, Sum>, false}, {allreduce<Bfloat16, Sum>, false}, {reduce<int, Max>, false},
    {reduce<float, Sum>, false}, {reduce_scatter_block<Complex<double>, Prod>, false},
    {reduce_scatter_block<int, Max>, false},
    {ring, true}, {batch, true}, {ahead, true}, {partitions, true},
    {token_shuffle, true}, {alltoallv_segments, true},
    {gather, false}, {scatter, false}, {allgatherv, false}, {gatherv, true}, {scatterv, true},
    {reduce_scatter<float, Sum>, false}, {reduce_scatter<int, Max>, false},
    {scan<float, Sum>, false}, {scan<Bfloat16, Sum>, false},
    {put_and_wait, true}, {put_and_meet, true}, {accumulate_bytes, true}, {talk, true}, {allreduce_records, false},
};

// The operation of each call; all ranks draw alike.
std::vector<Operation> operations_of(const Settings& settings) {
    std::vector<Operation> operations;
    while (operations.size() < settings.calls) {
        Draw draw(mix(settings.seed, operations.size()));
        const u64 operation = draw.below(std::size(kOperations)), repetitions = draw.of({1, 1, 1, 4});
        operations.insert(operations.end(), repetitions, kOperations[operation]);
    }
    return operations;
}

// Every second call of a rank.
void make_calls(const World& world, int rank, Watch* watch, Launches& launches, u64 first) {
    Team team = team_of(world, rank, watch);
    const std::vector<Operation> operations = operations_of(world.settings);
    for (u64 number = first; number < operations.size(); number += 2) {
        team.called.words[0] = kHash + number % 3;  // the same on all ranks
        Call call(world, team, launches, number, operations[number].is_alone);
        operations[number].make(call);
    }
}

void run_rank(const World& world, int rank) {
    Watch watch{};
    Launches launches;
    std::thread other(make_calls, std::cref(world), rank, &watch, std::ref(launches), 1);
    make_calls(world, rank, &watch, launches, 0);
    other.join();
}

int main(int argc, char** argv) {
    const Settings settings = parse(argc, argv);
    World world(settings);
    begin_channels(settings);
    begin_partitions(settings);
    ShuffleMemory shuffle(world);
    world.shuffle = &shuffle;
    DeviceMemory device(world);
    world.device = &device;
    std::vector<std::thread> ranks;
    for (int rank = 1; rank < settings.ranks; ++rank) ranks.emplace_back(run_rank, std::cref(world), rank);
    run_rank(world, 0);
    for (std::thread& rank : ranks) rank.join();
    return Call::failed ? kWrong : 0;
}
