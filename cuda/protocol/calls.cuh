// Comparison of calls: ranks whose calls of collective operations differ find it out, at no cost for those whose calls agree.
//
// The host gives each launch the hash and the text of its call, without what may differ among ranks (Called).
//   1. Block 0 puts them on record in this rank's lease. Peers read them when something is wrong, and not before.
//   2. What announces an operation to the peers also has a hash of all calls so far (channel.cuh). So once calls have
//      differed, later announcements differ too: a rank that had nothing to wait for when they did is found out later.
//   3. Who waits for an announcement compares it. Lines have the call's hash in their flags. Who waits for packets alone waits
//      for the announcement beside them (Channel::compare): it was stored before them.
//   4. A wait that has lasted long compares the records of both ranks (wait.cuh): their calls may wait for different things.
//   5. The rank that finds a difference leaves, and its host lets the others know, whose waits then leave too. The hosts
//      read the texts (pyncclx/memory/called.py); a rank that has failed records no more, so they are still there.
//
// A peer may be ahead: then its announcement has no hash that this rank could compute yet, and is taken for equal. But a peer
// is ahead only if it needed nothing of this rank, or has waited for its announcement, and compared that itself.
//
// Blocks other than 0 compare nothing: every launch has a block 0, and what it records lets all blocks leave.
#pragma once
#include "protocol/layout.cuh"

// The hash of a series of calls with one more. Each step can be undone, so different series stay different.
__device__ __forceinline__ u32 with_call(u32 calls, const Team& team) {
    return (calls ^ u32(team.called.words[0])) * 0x9E3779B1u;
}

// A thread of block 0 puts the call on record, the first word last. No fence keeps this order: the host sees by the hash
// whether it has the whole text.
// `failed`: LeaseHeader::failed, as it was when the kernel began.
__device__ __forceinline__ void record_call(const Team& team, u32 epoch, u32 failed) {
    LeaseHeader* header = lease_header(team);
    if (failed != 0u) {  // one more is recorded: it may be that of the operation that failed
        if (header->recorded_late != 0u) return;
        header->recorded_late = 1;
    }
    const u64* from = team.called.words;
    Pack* to = reinterpret_cast<Pack*>(call_record(team, team.rank, epoch));
#pragma unroll
    for (int i = kCallWords / 2 - 1; i > 0; --i) st_packet_sys(to + i, Pack{from[2 * i], from[2 * i + 1]});
    st_packet_sys(to, Pack{u64(epoch) << 32 | from[0], from[1]});
}

// Whether a peer has another call on record for this operation of channel 0.
__device__ __forceinline__ bool call_differs(const Team& team, int peer, u32 epoch) {
    const u64 theirs = ld_relaxed_sys(call_record(team, peer, epoch)->words);
    return u32(theirs >> 32) == epoch && u32(theirs) != u32(team.called.words[0]);
}
