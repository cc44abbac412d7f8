// Partitioned messages: the sender's threads store each partition in the receiver's buffer when it is ready.
//
//   1. The receiver begins a round: it advances `epoch`, by a release. Until then only the receiver uses its buffer.
//   2. Threads of the sender wait for that, store a partition, meet, and one of them counts its bytes in `sent`.
//   3. Who counts the last bytes of one of the receiver's partitions sets its word in `arrived` to the round, by a release.
//   4. The receiver waits for these words; the sender waits for `finished`, which counts them.
//
// Both sides divide the same bytes, perhaps into different numbers of partitions. So a partition of the sender may be a
// part of one of the receiver, or of several. Rounds are 32-bit numbers that wrap around; `sent` is 0 between rounds.
//
// Each word has one writer, its own end; only `arrived`, in the receiver's memory, is written by the sender.
//
// Twin: pyncclx/messages/arguments.py packs Partitions; tests/host/messages/test_arguments.py compares both.
#pragma once
#include "protocol/vector.cuh"
#include "protocol/wait.cuh"

struct Partitions {  // one end of a message
    Team team;       // one rank alone: its error record and its timeout
    const char* from;    // the sender's: its buffer, the receiver's
    char* to;
    u64 nbytes;
    u32* epoch;          // this end's: rounds begun
    const u32* started;  // the receiver's epoch
    u32* arrived;        // for each partition of the receiver: the last round in which it has arrived
    u64* sent;           // the sender's: for each partition of the receiver, its bytes that are stored in this round
    u32* finished;       // the sender's: the receiver's partitions stored, in all rounds. Null: the receiver's end
    u32 sends, receives;  // partitions of the sender, of the receiver
    int peer, tag;
};

__device__ __forceinline__ bool wait_for_round(const Partitions& p, const u32* word, u32 round, u32 expected) {
    return wait_for(p.team, word, Awaited{round, p.tag, p.peer, expected, 0});
}

// One thread counts bytes [begin, begin + count) as stored, by itself or by threads that it has met since.
__device__ __forceinline__ void count_sent(const Partitions& p, u32 round, u64 begin, u64 count, u64 each) {
    for (u64 at = begin, end = begin + count; at < end;) {
        const u64 partition = at / each, next = smaller((partition + 1) * each, end);
        // Releases these bytes to the thread that counts the partition's last ones, and releases them to the receiver.
        if (atomic_add_sys(&p.sent[partition], next - at) + (next - at) == each) {
            st_relaxed_sys(&p.sent[partition], u64(0));
            st_release_sys(&p.arrived[partition], round);
            atomic_add_sys(p.finished, 1u);
        }
        at = next;
    }
}

// Threads send one of `chunks` parts of a partition, written by themselves or by threads that they have met. `meet(ok)`
// is a barrier of these threads; it returns whether all are ok.
template <class Meet>
__device__ __forceinline__ bool send_partition(
    const Partitions& p, u32 partition, u32 chunk, u32 chunks, u32 member, u32 members, Meet meet) {
    const u32 round = *p.epoch;
    if (!meet(member != 0 || wait_for_round(p, p.started, round, round))) return false;
    const u64 each = p.nbytes / p.sends;
    const Part part(each, chunks, chunk);
    const u64 begin = partition * each + part.begin;
    copy_message(member, members, p.from + begin, p.to + begin, part.nbytes);
    meet(true);
    if (member != 0) return true;
    if (p.nbytes != 0) count_sent(p, round, begin, part.nbytes, p.nbytes / p.receives);
    else count_sent(p, round, u64(partition) * p.receives, p.receives, p.sends);  // an empty part is counted, too
    return true;
}

// One thread of the receiver: returns whether a partition has arrived, and then acquires it.
__device__ __forceinline__ bool has_arrived(const Partitions& p, u32 partition) {
    return int(ld_acquire_sys(&p.arrived[partition]) - *p.epoch) >= 0;
}

// One thread of the receiver waits for a partition, and acquires it.
__device__ __forceinline__ bool wait_for_partition(const Partitions& p, u32 partition) {
    const u32 round = *p.epoch;
    return wait_for_round(p, &p.arrived[partition], round, round);
}
