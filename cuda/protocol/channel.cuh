// A block's view of its channel: the epoch, who has entered it, and the rule that keeps buffers safe.
//
// The block with index b is channel b on every rank, and every rank launches the same grid for an
// operation, so all ranks count a channel's operations alike; the count is the *epoch*. It lives in device
// memory and the kernel advances it: nothing that changes from call to call is an argument, and a captured
// launch can be replayed.
//
// A rank that begins operation e says so to every peer (`entered`). Since a rank's operations follow each
// other on its stream, "entered e" also says "finished e - 1", and that is all the flow control there is
// between operations, whoever talks to whom in them:
//   * packet slots alternate by the epoch's parity: written in e once the peer has entered e - 1,
//     that is, has finished e - 2, the last operation in which it read this slot;
//   * chunk rings are reused by every operation: written in e once the peer has entered e.
#pragma once
#include "protocol/vector.cuh"
#include "protocol/wait.cuh"

// Operations that need not announce do so once in as many: an older word would be taken for one that is yet to come.
constexpr u32 kMostSilent = 1u << 30;

struct Channel {
    const Team& team;
    const int index;
    ChannelControl* const mine;
    const u32 epoch;
    const u32 heard;

    // Every thread of the block calls it, and `leave` at the end.
    __device__ explicit Channel(const Team& team) : Channel(team, team.early != 0) {}

    // An operation in two launches is begun by the first. One that does not announce at once calls `announce` later.
    __device__ Channel(const Team& team, bool early, bool begins = true, bool announces = true)
        : Channel(team, awaited(find(team)), early, begins, announces) {}

    // The same of a kernel that has found its words, and has then waited for the one before.
    __device__ Channel(const Team& team, ChannelControl* found, bool early, bool begins, bool announces)
        : team(team),
          index(int(blockIdx.x)),
          mine(arrive(early, found)),
          epoch(begins ? next(mine->epoch) : mine->epoch),
          heard(mine->heard) {
        if (!begins) return;
        if (epoch == 0xffffffffu || epoch == 2) scrub();
        // After 0xffffffff peers wait for epoch 2, since no epoch is 1 then.
        if (announces || epoch == 2 || epoch % kMostSilent == 0) announce();
    }

    // What a channel looks at first: where its words are.
    __device__ static ChannelControl* find(const Team& team) { return channel_control(team, team.rank, int(blockIdx.x)); }
    __device__ static u64 known(const Team& team) { return u64(find(team)); }

    // Says to all peers that this rank has begun the operation, and is through with what it read in those before: their kernels
    // have ended. Nobody takes it for a word about what this rank has stored at a peer; a barrier says so itself.
    __device__ void announce() const {
        const int peer = int(blockDim.x - 1 - threadIdx.x);  // the last warp: the first has other things to do
        if (is_peer(peer)) st_after_loads_sys(&channel_control(team, peer, index)->entered[team.rank], epoch);
    }

    // The block's operation is over. With `heard` on all threads, every peer is known to have entered it: data
    // of this operation came from each of them. The next operation then need not ask.
    __device__ void leave(bool heard = false) {
        const bool all_heard = everyone(heard);
        if (threadIdx.x != 0) return;
        mine->epoch = epoch;
        if (all_heard) mine->heard = epoch;
    }

    __device__ bool is_peer(int rank) const { return rank < team.size && rank != team.rank; }

    // The j-th peer counted from this rank, so that the ranks do not all begin with rank 0.
    __device__ int peer(int j) const {
        const int rank = team.rank + 1 + j;
        return rank < team.size ? rank : rank - team.size;
    }

    // All threads wait until every peer has entered operation `epoch - ago`; false: leave.
    __device__ bool await_entered(u32 ago) {
        if (heard == epoch - ago) return true;
        const int peer = int(threadIdx.x);
        return everyone(!is_peer(peer) || wait_for_entered(peer, epoch - ago));
    }

    // All threads: have the peers read what the slots of this parity held, those of packets and those of lines? False: leave.
    __device__ bool await_slots() { return await_entered(1); }

    __device__ bool wait_for_entered(int peer, u32 operation) const {
        return wait_for(team, &mine->entered[peer], Awaited{epoch, index, peer, operation, 0});
    }

    // What a word says that counts within this operation, and a wait until a peer has written it.
    __device__ u64 mark(u64 count) const { return (u64(epoch) << 32) + count; }
    __device__ bool wait_for_count(const u64* word, int peer, u64 count) {
        return wait_for(team, word, Awaited{epoch, index, peer, mark(count), 0});
    }

    // The same channel on another rank.
    __device__ ChannelControl* theirs(int rank) const { return channel_control(team, rank, index); }

    // A barrier of the block that tells whether all its threads got what they waited for.
    __device__ static bool everyone(bool ok) { return __syncthreads_or(!ok) == 0; }

    // Which of the places that `holder` keeps for its peers belongs to `source`. It keeps none for itself.
    __device__ u32 place_of(int holder, int source) const { return place_of(team, holder, source); }

    __device__ static u32 place_of(const Team& team, int holder, int source) {
        return u32(source > holder ? source - holder : source - holder + team.size) - 1;
    }

    __device__ u32 places() const { return u32(team.size) - 1; }

    // The packet slots of this channel that `holder` keeps, one a place.
    __device__ Pack* slots(int holder, u32 parity) const {
        char* slots = team.base[holder] + team.packets_offset;
        return reinterpret_cast<Pack*>(slots) + (u64(index) * 2 + parity) * places() * team.slot_packets;
    }

  private:
    // A kernel that takes few multiprocessors may have been launched early: nothing that another one leaves is looked at
    // before that has ended.
    __device__ static ChannelControl* awaited(ChannelControl* control) {
        await_previous(u64(control));
        return control;
    }

    // Then the next one may be launched, if this one takes few itself, so that a communicator never has more of the GPU than one
    // long operation has.
    __device__ static ChannelControl* arrive(bool early, ChannelControl* control) {
        if (early) let_next_begin();
        return control;
    }

    // 0 is what an untouched packet slot says, and 1 would break the parity after 0xffffffff.
    __device__ static u32 next(u32 epoch) { return epoch == 0xffffffffu ? 2 : epoch + 1; }

    // What is left alone for 2^32 operations would look new. When the epoch begins anew, the slots that the
    // *next* operation uses are cleared, and the counters that this one may use. Peers write them after this rank
    // has entered, which it says afterwards.
    __device__ void scrub() {
        for (u32 i = threadIdx.x; i < u32(kRings * kMaxRanks); i += blockDim.x) {
            st_relaxed_sys(&mine->head[0][0] + i, u64(0));
            st_relaxed_sys(&mine->tail[0][0] + i, u64(0));
        }
        for (u32 i = threadIdx.x; i < kLanes; i += blockDim.x) {
            st_relaxed_sys(&mine->came[i], u64(0));
            st_relaxed_sys(&mine->taken[i], u64(0));
        }
        const u64 packs = u64(places()) * team.slot_rows * (kRowNbytes / kPackNbytes);
        Pack* lines = reinterpret_cast<Pack*>(team.base[team.rank] + team.lines_offset) + (u64(index) * 2 + ((epoch + 1) & 1)) * packs;
        for (u64 i = threadIdx.x; i < packs; i += blockDim.x) st_packet_sys(lines + i, Pack{0, 0});
        Pack* slot = slots(team.rank, (epoch + 1) & 1);
        for (u32 i = threadIdx.x; i < places() * team.slot_packets; i += blockDim.x)
            st_packet_sys(slot + i, Pack{0, 0});
        fence_sys();  // before it is announced
        __syncthreads();
        if (threadIdx.x == 0) mine->heard = 0;  // now that all threads have read it
    }
};

// Warps of a block divided among jobs: with fewer warps than jobs, or more jobs than groups, a group does several.
// A group meets by a barrier of its own, and waits for no other.
struct Crew {
    u32 first_job, next_job;  // for (job = first_job; job < jobs; job += next_job)
    u32 member, members;      //   for (i = member; i < work; i += members)
    u32 group;

    // All warps of the block.
    __device__ explicit Crew(u32 jobs) : Crew(jobs, 0, (blockDim.x + 31) / 32, 1) {}

    // The warps from `begin` to `end`, which form groups from number `first_group` on.
    __device__ Crew(u32 jobs, u32 begin, u32 end, u32 first_group) {
        const u32 warps = end - begin, warp = threadIdx.x / 32 - begin;
        next_job = u32(smaller(smaller(warps, kMaxGroups - first_group), jobs ? jobs : 1));
        first_job = warp % next_job;
        member = warp / next_job * 32 + threadIdx.x % 32;
        members = ((warps - first_job - 1) / next_job + 1) * 32;
        group = first_group + first_job;
    }

    // A barrier of the group that tells whether all its threads got what they waited for.
    __device__ bool everyone(bool ok) const { return !any_of_group(!ok, group, members); }

    static constexpr u32 kMaxGroups = 16;  // of a block; 0 is the block
};
