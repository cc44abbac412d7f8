// Messages: every rank sends to the next one, by a slot or from where the data is.
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
    if (!eager) call.run(offer<>, OfferArgs{call.team, &mine.ready, nullptr, clock, next, 0}, 1);

    while (theirs.clock.load(std::memory_order_relaxed) != clock) sched_yield();
    const char* from = reinterpret_cast<const char*>(theirs.address.load(std::memory_order_relaxed));
    const u32 grid = u32(call.draw.between(1, call.team.channels));
    const Pull taken{&theirs.ready, &theirs.done, &mine.arrived, from, recv.as(), nbytes, clock, last, 0};
    if (at_once) call.run(put_and_pull<>, ExchangeArgs{call.team, put, taken}, grid);
    else call.run(pull<>, PullArgs{call.team, taken}, grid);
    if (!eager) call.run(offer<>, OfferArgs{call.team, nullptr, &mine.done, clock, next, 0}, 1);
    memset(send.as(), Buffer::kPoison, nbytes);  // the sender's own again
    check(call, recv.as(), nbytes, last, rank);
    if (!recv.intact()) call.wrong("memory before the buffer", 0, 0, "was written");
}
