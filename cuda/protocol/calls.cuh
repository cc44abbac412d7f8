// Comparison of calls: detect that ranks make different collective calls, at no cost if their calls agree.
//
// The host passes each launch the hash and the text of its call, without what may differ among ranks (Called).
//   1. Block 0 stores them in this rank's lease. Peers read them only when something is wrong.
//   2. A rank announces an operation to the peers with a hash of all its calls so far (channel.cuh). So once calls have
//      differed, later announcements differ too, and a rank that did not wait at that call detects it later.
//   3. A rank that waits for an announcement compares it. Lines have the call's hash in their flags. A rank that waits
//      only for packets waits for the announcement beside them (Channel::compare), which was stored before them.
//   4. A wait that has lasted long compares the records of both ranks (wait.cuh), as their calls may not match.
//   5. The rank that detects a difference leaves, and its host makes the other ranks' waits end too. The hosts read the
//      texts (pyncclx/memory/called.py); a rank that has failed records no more, so they are still there.
//
// A peer may be ahead. Then its announcement has a hash that this rank cannot compute yet, and counts as equal. But a
// peer is ahead only if it needed nothing of this rank, or has waited for its announcement, and compared that itself.
//
// Blocks other than 0 compare nothing: every launch has a block 0, and what it records lets all blocks leave.
#pragma once
#include "protocol/layout.cuh"

// The hash of a series of calls with one more. Each step can be undone, so different series stay different.
__device__ __forceinline__ u32 with_call(u32 calls, const Team& team) {
    return (calls ^ u32(team.called.words[0])) * 0x9E3779B1u;
}

// A thread of block 0 stores the call's record, the first word last. No fence keeps this order: the host sees
// by the hash whether it has the whole text. `failed` is LeaseHeader::failed, as it was when the kernel
// began.
__device__ __forceinline__ void record_call(const Team& team, u32 epoch, u32 failed) {
    LeaseHeader* header = lease_header(team);
    if (failed != 0u) {  // one more call is recorded: it may be the operation that failed
        if (header->recorded_late != 0u) return;
        header->recorded_late = 1;
    }
    const u64* from = team.called.words;
    Pack* to = reinterpret_cast<Pack*>(call_record(team, team.rank, epoch));
#pragma unroll
    for (int i = kCallWords / 2 - 1; i > 0; --i) st_packet_sys(to + i, Pack{from[2 * i], from[2 * i + 1]});
    st_packet_sys(to, Pack{u64(epoch) << 32 | from[0], from[1]});
}

// Returns whether a peer has recorded another call for this operation of channel 0.
__device__ __forceinline__ bool call_differs(const Team& team, int peer, u32 epoch) {
    const u64 theirs = ld_relaxed_sys(call_record(team, peer, epoch)->words);
    return u32(theirs >> 32) == epoch && u32(theirs) != u32(team.called.words[0]);
}
