// Token shuffles: dispatch, combine, collect and a dispatch on the same ways, each row and sum compared with a loop.
#pragma once
#include <array>
#include <map>

#include "world.h"

constexpr int kExperts = 5, kHidden = 32, kMostTokens = 40, kMostChoices = 4;
constexpr i64 kShuffleCapacity = 160, kLittleRoom = 24;
constexpr int kFewTokens = 2;     // which travel as lines
constexpr int kAloneChoices = 8;  // which every block counts
constexpr int kWordsAt = 16;      // after the counts of 32 buckets, even of one block

// What one token shuffle needs of every rank, to the byte; it lives as long as the run.
struct ShuffleMemory {
    const World& world;
    Team team;  // with the bases of the workspaces
    char* parts[6][kMaxRanks];  // rows, scales, ways, notes, results, values
    std::vector<std::unique_ptr<Buffer>> kept;
    u32 places[kMaxRanks][kExperts];
    int histograms[kMaxRanks][16 * kMaxRanks], matrix[kMaxRanks][kMaxRanks * kMaxRanks];
    std::vector<Pack> own_slots[kMaxRanks], own_rows[kMaxRanks];

    explicit ShuffleMemory(const World& world) : world(world), team{}, parts{} {
        const Settings& settings = world.settings;
        team.size = settings.ranks;
        team.channels = settings.channels;
        team.slot_packets = kWordsAt + 1 + kFewTokens * kMostChoices;
        team.slot_rows = kFewTokens * (kHidden * 4 / int(kRowPacks * sizeof(Pack)) + 1);
        team.lines_offset = sizeof(LeaseHeader) + sizeof(CallRecord) + settings.channels * sizeof(ChannelControl);
        team.packets_offset = team.lines_offset + settings.channels * 2 * u64(settings.ranks - 1) * team.slot_rows * kRowNbytes;
        team.timeout_ns = u64(settings.patience_s * 1e9);
        const u64 slots = settings.channels * 2 * u64(settings.ranks - 1) * team.slot_packets;
        team.rings_offset = team.packets_offset + slots * sizeof(Pack);
        const u64 choices = kMostTokens * kMostChoices, of_all = u64(settings.ranks) * choices;
        const u64 sizes[6] = {kShuffleCapacity * kHidden * 4, kShuffleCapacity * 4, of_all * 4, of_all * 8,
                              choices * kHidden * 4, choices * 4};
        for (int rank = 0; rank < settings.ranks; ++rank) {
            team.base[rank] = take(team.rings_offset, 0);
            begin_at(settings, team, rank);
            if (settings.seed % 2 == 1) be_silent(rank);
            for (int part = 0; part < 6; ++part) parts[part][rank] = take(sizes[part], Buffer::kPoison);
            Draw draw(mix(settings.seed + 2, u64(rank)));
            for (u32 i = 0; i < settings.channels * 2 * team.slot_packets; ++i) {
                const u32 epoch = operation_before(settings, draw);
                own_slots[rank].push_back(epoch == 0 ? Pack{0, 0} : make_packet(draw.below(~0ull), epoch));
            }
            for (u32 i = 0; i < settings.channels * 2 * team.slot_rows * kRowPlaces; ++i)
                own_rows[rank].push_back(Pack{draw.below(~0ull), i % 8 == 7 ? operation_before(settings, draw) : draw.below(~0ull)});
        }
        for (int e = 0; e < kExperts; ++e) places[0][e] = expert_place(e * team.size / kExperts, 0);
        for (int e = 1; e < kExperts; ++e)
            if (place_rank(places[0][e]) == place_rank(places[0][e - 1])) places[0][e] = places[0][e - 1] + 1;
    }

  private:
    // As if all operations before were of few tokens: they announce nothing but once in kMostSilent, and hear of every rank.
    void be_silent(int rank) {
        const u32 epoch = world.settings.epoch;
        for (u32 channel = 0; channel < team.channels; ++channel) {
            ChannelControl& control = *channel_control(team, rank, int(channel));
            control.all_entered = epoch;
            for (int peer = 0; peer < team.size; ++peer) control.entered[peer] = u64(epoch / kMostSilent * kMostSilent) << 32;
        }
    }

    char* take(u64 nbytes, int value) {
        kept.emplace_back(new Buffer(nbytes + 128));
        char* begin = kept.back()->as();
        begin += (128 - reinterpret_cast<u64>(begin) % 128) % 128;
        memset(begin, value, nbytes);
        return begin;
    }
};

// What every rank has of one shuffle: who chose what, and where it belongs.
struct Ways {
    Call& call;
    const int k;
    const bool by_source, drops;
    const i64 capacity;
    int tokens[kMaxRanks];
    i64 experts[kMaxRanks][kMostTokens * kMostChoices];
    struct Row { int source, token, choice; };
    std::vector<Row> rows[kMaxRanks];                        // of each rank, in order
    std::map<std::array<int, 3>, std::array<int, 2>> places;  // (source, token, choice) -> rank, row

    Ways(Call& call, const ShuffleMemory& memory)
        : call(call), k(int(call.draw.between(1, kMostChoices))), by_source(call.draw.one_in(2)),
          drops(call.draw.one_in(2)),
          capacity(call.draw.one_in(2) ? kLittleRoom : kShuffleCapacity) {
        const int most = call.draw.one_in(6) ? kMostTokens : call.draw.of({kFewTokens, 9});  // of the most some come in two stages
        std::map<std::array<int, 2>, std::vector<Row>> buckets;
        for (int source = 0; source < call.size(); ++source) {
            tokens[source] = int(call.draw.below(u64(most + 1)));
            for (int i = 0; i < tokens[source] * k; ++i) {
                const i64 expert = experts[source][i] = i64(call.draw.below(kExperts + 1)) - 1;
                if (expert < 0) continue;
                const int rank = place_rank(memory.places[0][expert]);
                buckets[{rank, by_source ? source : int(expert)}].push_back({source, i / k, i % k});
            }
        }
        for (auto& [bucket, its] : buckets) {
            const int rank = bucket[0];
            i64 room = capacity, experts_of_rank = 0;
            for (u32 place : memory.places[0]) experts_of_rank += place_rank(place) == rank ? 1 : 0;
            if (drops && !by_source) room /= experts_of_rank;
            for (const Row& row : its) {
                if (room-- <= 0 || i64(rows[rank].size()) == capacity) continue;
                places[{row.source, row.token, row.choice}] = {rank, int(rows[rank].size())};
                rows[rank].push_back(row);
            }
        }
    }

    float weight(int source, int token, int choice) const { return float((source + token + choice) % 7 + 1); }
    // Small integers, so that sums are exact in any order.
    float value(int source, int token, int element, int round) const {
        return float(mix(call.label() + u64(round), u64(source * 1000 + token * 50 + element)) % 256);
    }
    float result(int source, int token, int choice, int element) const {
        return float(mix(call.label() + 77, u64(source * 10000 + token * 500 + choice * 40 + element)) % 256);
    }
};

// One rank's part: its arrays, and its checks.
struct ShuffleCall {
    Call& call;
    const Ways& ways;
    const int me, mine;
    Shuffle shuffle{};
    Buffer tokens, experts, weights, routes, ways_of_all, results, out, row_values, collected;
    i64 token_counts[kMaxRanks], counts[kMaxRanks + kExperts], offsets[kMaxRanks + kExperts + 1], total = -1, dropped[kMaxRanks];
    int row_experts[kShuffleCapacity];
    float row_weights[kShuffleCapacity];

    ShuffleCall(Call& call, ShuffleMemory& memory, const Ways& ways)
        : call(call), ways(ways), me(call.team.rank), mine(ways.tokens[me]), tokens(u64(mine) * kHidden * 4),
          experts(u64(mine * ways.k) * 8), weights(u64(mine * ways.k) * 4), routes(u64(mine * ways.k) * 8),
          ways_of_all(u64(call.size()) * kMostTokens * ways.k * 4), results(kShuffleCapacity * kHidden * 4),
          out(u64(mine) * kHidden * 4), row_values(kShuffleCapacity * 4), collected(u64(mine * ways.k) * 4) {
        shuffle.team = memory.team;
        shuffle.team.rank = me;
        shuffle.team.watch = call.team.watch;
        char* (*const parts[6])[kMaxRanks] = {&shuffle.rows, &shuffle.scales, &shuffle.ways,
                                              &shuffle.notes, &shuffle.results, &shuffle.values};
        for (int part = 0; part < 6; ++part) std::copy_n(memory.parts[part], kMaxRanks, *parts[part]);
        shuffle.places = memory.places[0];
        shuffle.histograms = memory.histograms[me];
        shuffle.matrix = memory.matrix[me];
        shuffle.own_slots = memory.own_slots[me].data();
        shuffle.own_rows = memory.own_rows[me].data();
        shuffle.max_tokens = kMostTokens;
        shuffle.few_tokens = kFewTokens;
        shuffle.alone_choices = kAloneChoices;
        shuffle.words_at = kWordsAt;
        shuffle.experts = kExperts;
        shuffle.replicas = 1;
        shuffle.k = ways.k;
        shuffle.hidden = kHidden;
        shuffle.capacity = ways.capacity;
        shuffle.results_of_token = std::min(ways.k, call.size());
        shuffle.by_source = ways.by_source;
        shuffle.drops = ways.drops;
        for (int rank = 0; rank < call.size(); ++rank) {
            shuffle.first[rank + 1] = shuffle.first[rank] + (ways.by_source ? 1 : 0);
            for (u32 place : memory.places[0])
                if (!ways.by_source && place_rank(place) == rank) ++shuffle.first[rank + 1];
        }
        shuffle.buckets = shuffle.first[call.size()];
        std::copy_n(ways.experts[me], mine * ways.k, experts.as<i64>());
        for (int i = 0; i < mine * ways.k; ++i) weights.as<float>()[i] = ways.weight(me, i / ways.k, i % ways.k);
    }

    template <class Args>
    void launch(void (*kernel)(Args), Args args) {
        const bool split = call.draw.one_in(2);
        if (split) {
            args.phases = kSend;
            call.run(kernel, args, shuffle.team.channels);
        }
        args.phases = split ? kReceive : kSend | kReceive;
        call.run(kernel, args, shuffle.team.channels);
    }

    void dispatch(bool reuse) {
        for (int i = 0; i < mine * kHidden; ++i)
            tokens.as<float>()[i] = ways.value(me, i / kHidden, i % kHidden, reuse);
        launch(::dispatch<float, float>,
               DispatchArgs{shuffle, tokens.as(), experts.as(), weights.as<float>(), routes.as<u64>(),
                            ways_of_all.as<u32>(), token_counts, counts, offsets, &total, dropped, row_experts, row_weights, mine, 8, reuse, {}, 0});
        const float* rows = reinterpret_cast<const float*>(shuffle.rows[me]);
        if (total != i64(ways.rows[me].size())) return call.wrong("rows", 0, 0, "%lld", total);
        for (i64 row = 0; row < total; ++row) {
            const Ways::Row& from = ways.rows[me][row];
            for (int e = 0; e < kHidden; ++e) {
                const float expected = ways.value(from.source, from.token, e, reuse), seen = rows[row * kHidden + e];
                if (seen != expected) return call.wrong("row", row, e, "%g instead of %g", seen, expected);
            }
            if (row_weights[row] != ways.weight(from.source, from.token, from.choice))
                return call.wrong("weight", row, 0, "%g", row_weights[row]);
        }
    }

    void combine() {
        for (u64 row = 0; row < ways.rows[me].size(); ++row) {
            const Ways::Row& from = ways.rows[me][row];
            for (int e = 0; e < kHidden; ++e)
                results.as<float>()[row * kHidden + e] = ways.result(from.source, from.token, from.choice, e);
        }
        launch(::combine<float, float>, CombineArgs{shuffle, results.as(), ways_of_all.as<u32>(), token_counts,
                                                    row_weights, routes.as<u64>(), out.as(), mine, 1, {}, 0});
        for (int i = 0; i < mine * kHidden; ++i) {
            const int token = i / kHidden, e = i % kHidden;
            float expected = 0;
            for (int c = 0; c < ways.k; ++c)
                if (ways.places.count({me, token, c})) expected += ways.weight(me, token, c) * ways.result(me, token, c, e);
            const float seen = out.as<float>()[i];
            if (seen != expected) return call.wrong("sum", token, e, "%g instead of %g", seen, expected);
        }
    }

    void collect() {
        for (u64 row = 0; row < ways.rows[me].size(); ++row) {
            const Ways::Row& from = ways.rows[me][row];
            row_values.as<float>()[row] = ways.result(from.source, from.token, from.choice, 39);
        }
        launch(::collect, CollectArgs{shuffle, row_values.as<float>(), ways_of_all.as<u32>(), token_counts,
                                      routes.as<u64>(), collected.as<float>(), mine, 0});
        for (int i = 0; i < mine * ways.k; ++i) {
            const int token = i / ways.k, choice = i % ways.k;
            const float expected = ways.places.count({me, token, choice}) ? ways.result(me, token, choice, 39) : 0.0f;
            const float seen = collected.as<float>()[i];
            if (seen != expected) return call.wrong("number", token, choice, "%g instead of %g", seen, expected);
        }
    }

    u32 finished_of(u32 channel) const { return u32(channel_control(shuffle.team, me, int(channel))->finished >> 32); }

    // Once the epoch has begun anew, no packet and no line is from a later one.
    void check_own_slots() {
        for (u32 i = 0; i < shuffle.team.channels * 2 * shuffle.team.slot_packets; ++i) {
            const u32 epoch = finished_of(i / 2 / shuffle.team.slot_packets);
            if (epoch < call.world.settings.epoch && u32(shuffle.own_slots[i].x >> 32) > epoch)
                return call.wrong("own slot", 0, i, "is of an operation long ago");
        }
        const u32 places = shuffle.team.slot_rows * kRowPlaces;
        for (u32 i = 7; i < shuffle.team.channels * 2 * places; i += 8) {
            const u32 epoch = finished_of(i / 2 / places);
            if (epoch < call.world.settings.epoch && shuffle.own_rows[i].y > epoch)
                return call.wrong("own row", 0, i, "is of an operation long ago");
        }
    }
};

inline void token_shuffle(Call& call) {
    call.name = "token shuffle";
    ShuffleMemory& memory = *call.world.shuffle;
    const Ways ways(call, memory);
    ShuffleCall mine(call, memory, ways);
    mine.dispatch(false);
    for (u64 more = call.draw.below(4); more > 0; --more) {
        switch (call.draw.below(3)) {
            case 0: mine.dispatch(true); break;
            case 1: mine.combine(); break;
            default: mine.collect();
        }
    }
    mine.check_own_slots();
    call.team.watch->overflow = 0;  // as the host does when it has raised the error
    lease_header(mine.shuffle.team)->overflow = 0;
}
