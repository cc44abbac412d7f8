// Messages: every rank sends to the next one, by a slot or from where the data is; one message, or some at once.
//
// What MPI does is played by relaxed words, which order nothing: that the data is there, and that it was read, must
// follow from the kernels' words alone. The envelope goes first, so a kernel really waits for `ready`.
#pragma once
#include "moves.h"

struct Mail {  // of one sender; a program has one world
    static constexpr u64 kSlotNbytes = 2048;
    alignas(kPackNbytes) char slot[kSlotNbytes];
    u64 ready = 0, done = 0;
    u32 arrived = 0;  // of the kernels that receive
    std::atomic<u64> clock{0}, address{0};  // the envelope
};
inline Mail mail[kMaxRanks];

inline void ring(Call& call) {
    call.team.called = {};  // no collective operation: its waits compare no calls
    const bool eager = call.draw.one_in(2), at_once = eager && call.draw.one_in(2);
    call.name = at_once ? "put_and_pull" : eager ? "put_eager and pull" : "offer and pull";
    const u64 nbytes = eager ? call.draw.below(Mail::kSlotNbytes + 1) : 1 + call.draw.below(20000), clock = call.number + 1;
    const int rank = call.team.rank, next = (rank + 1) % call.size(), last = (rank + call.size() - 1) % call.size();
    Mail &mine = mail[rank], &theirs = mail[last];
    const u64 before = mine.clock.load(std::memory_order_relaxed);
    while (__atomic_load_n(&mine.done, __ATOMIC_ACQUIRE) != before) sched_yield();  // the host gives out free places only

    const Buffer send(nbytes, any_alignment(call)), recv(nbytes, any_alignment(call));
    fill(call, send.as(), nbytes, rank, next);
    mine.address.store(u64(eager ? mine.slot : send.as()), std::memory_order_relaxed);
    mine.clock.store(clock, std::memory_order_release);
    const Put put{send.as(), mine.slot, &mine.ready, nbytes, clock};
    if (eager && !at_once) call.run(put_eager<>, PutArgs{call.team, put}, 1);
    if (!eager) call.run(offer<>, OfferArgs{call.team, &mine.ready, nullptr, clock, next, 0, 1, 0}, 1);

    while (theirs.clock.load(std::memory_order_relaxed) != clock) sched_yield();
    const char* from = reinterpret_cast<const char*>(theirs.address.load(std::memory_order_relaxed));
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const Pull taken{&theirs.ready, &theirs.done, &mine.arrived, from, recv.as(), nbytes, clock, last, 0};
    if (at_once) call.run(put_and_pull<>, ExchangeArgs{call.team, put, taken}, grid);
    else call.run(pull<>, PullArgs{call.team, taken}, grid);
    if (!eager) call.run(offer<>, OfferArgs{call.team, &mine.ready, &mine.done, clock, next, 0, 0, 0}, 1);
    memset(send.as(), Buffer::kPoison, nbytes);  // the sender's own again
    check(call, recv.as(), nbytes, last, rank);
    if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

// In graphs: one launch for what a rank sends and receives, by channels, where no host takes part.
struct TestChannel {
    static constexpr u64 kStride = 1024, kLongNbytes = 20000;
    alignas(kPackNbytes) char slots[2 * kStride];
    alignas(kPackNbytes) char data[kLongNbytes];  // of long messages: fetched from where it is
    u64 ready = 0, done = 0;
    u32 sent = 0, awaited = 0, received = 0, arrived = 0;
};
constexpr u64 kShort = 2, kChannelsEach = 4;  // the first ones are of short messages
inline TestChannel channels[kMaxRanks][kChannelsEach];  // of a sender

// As if all of them had been used so often.
inline void begin_channels(const Settings& settings) {
    for (auto& each : channels)
        for (TestChannel& channel : each) {
            channel.ready = channel.done = settings.epoch;
            channel.sent = channel.awaited = channel.received = settings.epoch;
        }
}

inline void batch(Call& call) {
    call.name = "move_messages";
    call.team.called = {};
    const int rank = call.team.rank, next = (rank + 1) % call.size(), last = (rank + call.size() - 1) % call.size();
    const u64 used = call.draw.between(1, (1 << kChannelsEach) - 1);  // a bit for each channel
    std::vector<std::unique_ptr<Buffer>> sent, received;
    std::vector<Message> messages;
    for (u64 i = 0; i < kChannelsEach; ++i) {
        if ((used >> i & 1) == 0) continue;
        TestChannel &mine = channels[rank][i], &theirs = channels[last][i];
        const bool is_short = i < kShort;
        const u64 nbytes = call.draw.below(is_short ? TestChannel::kStride + 1 : TestChannel::kLongNbytes + 1);
        sent.push_back(std::make_unique<Buffer>(is_short ? nbytes : 0, any_alignment(call)));
        received.push_back(std::make_unique<Buffer>(nbytes, any_alignment(call)));
        char* const data = is_short ? sent.back()->as() : mine.data;
        fill(call, data, nbytes, rank, next);
        Message out{data, mine.slots, nbytes, &mine.ready, &mine.done, 0, nullptr, &mine.sent, TestChannel::kStride, 0, 1,
                    is_short ? kPutMessage : kSignalMessage, next, int(i), 0};
        messages.push_back(out);
        if (!is_short) {
            out.kind = kAwaitMessage;
            out.epoch = &mine.awaited;
            messages.push_back(out);
        }
        messages.push_back(Message{is_short ? theirs.slots : theirs.data, received.back()->as(), nbytes, &theirs.ready,
                                   &theirs.done, 0, &theirs.arrived, &theirs.received, is_short ? TestChannel::kStride : 0, 0,
                                   u32(call.draw.between(1, call.team.channels)), kPullMessage, last, int(i), 0});
    }
    std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) { return a.kind < b.kind; });
    BatchArgs args{call.team, u32(messages.size()), 0, {}};
    u32 grid = 0;
    for (u32 i = 0; i < args.count; ++i) {
        args.messages[i] = messages[i];
        args.messages[i].first_block = grid;
        grid += messages[i].blocks;
    }
    call.run(move_messages<>, args, grid);
    for (size_t i = 0, channel = 0; i < received.size(); ++i, ++channel) {
        while ((used >> channel & 1) == 0) ++channel;
        memset(sent[i]->as(), Buffer::kPoison, sent[i]->nbytes);  // the sender's own again
        if (channel >= kShort) memset(channels[rank][channel].data, Buffer::kPoison, TestChannel::kLongNbytes);
        check(call, received[i]->as(), received[i]->nbytes, last, rank);
        if (!received[i]->intact()) call.wrong("memory before the buffer", 0, 0, "was written");
    }
}

// A message in a channel to the next rank. `label`, in the place of the source, is in its data.
inline void send_ahead(Call& call, u64 i, u64 nbytes, int label) {
    const int rank = call.team.rank, next = (rank + 1) % call.size();
    TestChannel& mine = channels[rank][i];
    const Buffer sent(nbytes, any_alignment(call));
    fill(call, sent.as(), nbytes, label, next);
    BatchArgs args{call.team, 1, 0, {}};
    args.messages[0] = Message{sent.as(), mine.slots, nbytes, &mine.ready, &mine.done, 0, nullptr, &mine.sent,
                               TestChannel::kStride, 0, 1, kPutMessage, next, int(i), 0};
    call.run(move_messages<>, args, 1);
}

inline void receive_behind(Call& call, u64 i, u64 nbytes, int label) {
    const int rank = call.team.rank, last = (rank + call.size() - 1) % call.size();
    TestChannel& theirs = channels[last][i];
    const Buffer received(nbytes, any_alignment(call));
    const u32 grid = u32(1 + call.own.below(call.team.channels));
    BatchArgs args{call.team, 1, 0, {}};
    args.messages[0] = Message{theirs.slots, received.as(), nbytes, &theirs.ready, &theirs.done, 0, &theirs.arrived,
                               &theirs.received, TestChannel::kStride, 0, grid, kPullMessage, last, int(i), 0};
    call.run(move_messages<>, args, grid);
    check(call, received.as(), nbytes, label, rank);
    if (!received.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}

// Several messages in one channel, one after the other: a sender goes ahead of its receiver as far as the slots allow.
// Odd ranks receive first, or all ranks would wait for places.
inline void ahead(Call& call) {
    call.name = "move_messages, some ahead";
    call.team.called = {};
    if (call.size() == 1) return;
    const u64 i = call.draw.below(kShort), nbytes = call.draw.below(TestChannel::kStride + 1);
    const int count = int(call.draw.between(2, 6)), rank = call.team.rank, last = (rank + call.size() - 1) % call.size();
    for (int turn = 0; turn < 2; ++turn)
        for (int j = 0; j < count; ++j)
            if (turn == rank % 2) send_ahead(call, i, nbytes, rank + kMaxRanks * j);
            else receive_behind(call, i, nbytes, last + kMaxRanks * j);
}
