// A block's view of its channel: its epoch, the operations that peers have entered, and when a buffer may be reused.
//
// Block b is channel b on every rank, and waits only for blocks b. So a grid that does not fit on the GPU makes
// progress as long as the GPUs start blocks in the order of their numbers. CUDA does not promise this order, so there
// are no more channels than multiprocessors, divided among the ranks that share them. Every rank launches the same grid
// for an operation, so all ranks count a channel's operations alike; the count is the *epoch*. It is in device memory,
// and the kernel advances it. So no argument changes from call to call, and a captured launch can be replayed.
//
//   1. The constructor reads the epoch, adds 1, and writes it to `entered` at every peer (announce), with a hash of this rank's
//      calls (calls.cuh).
//   2. The operation runs. Its data carries the epoch.
//   3. `leave` stores the epoch as finished.
//
// A rank's operations follow each other on its stream, so "entered e" implies "finished e - 1". This is the only flow
// control between operations:
//   * slots of packets and lines alternate by the epoch's parity: a rank writes one in e once the peer has entered e - 1, which
//     means that it has finished e - 2, the last operation in which it read this slot;
//   * every operation reuses the chunk rings: a rank writes one in e once the peer has entered e.
#pragma once
#include "protocol/vector.cuh"
#include "protocol/wait.cuh"

// Operations that need not announce still announce once in kMostSilent operations. Otherwise a signed difference would
// take an older word for a later one.
constexpr u32 kMostSilent = 1u << 30;

struct Channel {
    const Team& team;
    const int index;
    ChannelControl* const mine;
    const u32 failed;  // argument of record_call; read here, so that it arrives with the epoch
    const u32 calls_before, epoch;
    const u32 calls;  // hash of all calls, this operation's included; calls_before: without it
    const u32 all_entered;

    // All threads of the block call it, and `leave` at the end.
    __device__ explicit Channel(const Team& team) : Channel(team, team.early != 0) {}

    // In an operation of two launches, the first one begins it. An operation that does not announce here calls
    // `announce` later.
    __device__ Channel(const Team& team, bool early, bool begins = true, bool announces = true)
        : Channel(team, awaited(find(team)), early, begins, announces) {}

    // For a kernel that has found its control words, and has waited for the previous kernel.
    __device__ Channel(const Team& team, ChannelControl* found, bool early, bool begins, bool announces)
        : team(team),
          index(int(blockIdx.x)),
          mine(arrive(early, found)),
          failed(index == 0 && peer_of_last_warp() == team.rank ? ld_relaxed_sys(&lease_header(team)->failed) : 0),
          calls_before(u32(mine->finished)),
          epoch(begins ? next(u32(mine->finished >> 32)) : u32(mine->finished >> 32)),
          calls(begins ? with_call(calls_before, team) : calls_before),
          all_entered(mine->all_entered) {
        if (!begins) return;
        if (epoch == 0xffffffffu || epoch == 2) scrub();
        // After epoch 0xffffffff peers wait for epoch 2, because epoch 1 is skipped then.
        if (announces || epoch == 2 || epoch % kMostSilent == 0) announce();
        if (index == 0 && peer_of_last_warp() == team.rank) record_call(team, epoch, failed);
    }

    // Returns this block's control words, before the previous kernel has ended (await_previous).
    __device__ static ChannelControl* find(const Team& team) { return channel_control(team, team.rank, int(blockIdx.x)); }
    __device__ static u64 dependency(const Team& team) { return u64(find(team)); }

    // Signals to all peers that this rank has begun the operation. What it read earlier may then be overwritten, as its
    // earlier kernels have ended. This does not release its stores at peers; barrier.cu has a fence for that.
    __device__ void announce() const {
        const int peer = peer_of_last_warp();
        if (is_peer(peer)) st_after_loads_sys(&channel_control(team, peer, index)->entered[team.rank], word());
    }

    // Ends the block's operation. `all_entered`, the same on all threads: data of this operation came from every peer.
    // So every peer has entered it, and the next operation need not wait for that.
    __device__ void leave(bool all_entered = false) {
        const bool on_all_threads = everyone(all_entered);
        if (threadIdx.x != 0) return;
        mine->finished = word();
        if (on_all_threads) mine->all_entered = epoch;
    }

    // Compares the calls of the peers for which comes(peer) holds, whose data comes as packets. The last warp usually
    // has no packets to wait for, so it does this meanwhile. False: leave.
    template <class Comes>
    __device__ bool compare(Comes comes) const {
        const int peer = peer_of_last_warp();
        const bool compares = index == 0 && is_peer(peer) && comes(peer);
        return !compares || wait_for_entered<false>(peer, epoch);
    }

    // Compares, then leaves.
    template <class Came>
    __device__ void leave(bool all_entered, Came came) {
        leave(compare(came) && all_entered);
    }

    __device__ bool is_peer(int rank) const { return rank < team.size && rank != team.rank; }

    // Returns the j-th peer, counted from this rank, so that ranks begin with different peers.
    __device__ int peer(int j) const {
        const int rank = team.rank + 1 + j;
        return rank < team.size ? rank : rank - team.size;
    }

    // All threads wait until every peer has entered operation `epoch - ago`; false: leave.
    __device__ bool await_entered(u32 ago) {
        if (all_entered == epoch - ago) return true;
        const int peer = int(threadIdx.x);
        return everyone(!is_peer(peer) || wait_for_entered(peer, epoch - ago));
    }

    // All threads wait until the peers have read what this parity's slots (packets and lines) held. False: leave.
    __device__ bool await_slots() { return await_entered(1); }

    // Waits until a peer has begun an operation, and compares its calls. False: leave.
    template <bool kAcquires = true>
    __device__ bool wait_for_entered(int peer, u32 operation) const {
        Patience patience;
        for (;;) {
            const u64* entered = &mine->entered[peer];
            const u64 seen = kAcquires ? ld_acquire_sys(entered) : ld_relaxed_sys(entered);
            if (int(u32(seen >> 32) - operation) >= 0) return index != 0 || agrees(peer, seen);
            if (!patience.lasts(team, [&] { return Awaited{epoch, index, peer, operation, seen >> 32}; })) return false;
        }
    }

    // The value of a word that counts within this operation; and a wait until a peer has written it.
    __device__ u64 mark(u64 count) const { return (u64(epoch) << 32) + count; }
    __device__ bool wait_for_count(const u64* word, int peer, u64 count) {
        return wait_for(team, word, Awaited{epoch, index, peer, mark(count), 0});
    }

    // The same channel on another rank.
    __device__ ChannelControl* theirs(int rank) const { return channel_control(team, rank, index); }

    // A barrier of the block; returns whether `ok` holds on all its threads.
    __device__ static bool everyone(bool ok) { return __syncthreads_or(!ok) == 0; }

    // The index of `source` among the places that `holder` has for its peers. It has none for itself.
    __device__ u32 place_of(int holder, int source) const { return place_of(team, holder, source); }

    __device__ static u32 place_of(const Team& team, int holder, int source) {
        return u32(source > holder ? source - holder : source - holder + team.size) - 1;
    }

    __device__ u32 places() const { return u32(team.size) - 1; }

    // The packet slots of this channel in `holder`'s lease, one for each place.
    __device__ Pack* slots(int holder, u32 parity) const {
        char* slots = team.base[holder] + team.packets_offset;
        return reinterpret_cast<Pack*>(slots) + (u64(index) * 2 + parity) * places() * team.slot_packets;
    }

  private:
    // The word that a peer finds in `entered`.
    __device__ u64 word() const { return u64(epoch) << 32 | calls; }

    // The rank for which a thread of the last warp, which has least to do, is responsible; for other threads no rank.
    __device__ static int peer_of_last_warp() { return int(blockDim.x - 1 - threadIdx.x); }

    // Returns whether a peer has made the same calls, if its word is of this operation or the previous one.
    __device__ bool agrees(int peer, u64 seen) const {
        const u32 ago = epoch - u32(seen >> 32);
        if (ago > 1 || u32(seen) == (ago == 0 ? calls : calls_before)) return true;
        record_failure(team, kMismatch, Awaited{epoch, index, peer, calls, seen});
        return false;
    }

    // A kernel that takes few multiprocessors may have been launched early. It waits for the previous kernel to end
    // before it reads what another kernel may write.
    __device__ static ChannelControl* awaited(ChannelControl* control) {
        await_previous(u64(control));
        return control;
    }

    // Then lets the next kernel begin, if this one takes few multiprocessors. So a communicator never takes more of the
    // GPU than one long operation does.
    __device__ static ChannelControl* arrive(bool early, ChannelControl* control) {
        if (early) let_next_begin();
        return control;
    }

    // 0 is skipped because untouched packet slots contain it, and 1 because it has the parity of 0xffffffff.
    __device__ static u32 next(u32 epoch) { return epoch == 0xffffffffu ? 2 : epoch + 1; }

    // Values that have stayed for 2^32 operations would look new. When the epoch wraps around, this clears the slots
    // that the *next* operation uses, and the counters that this one may use. Peers write them after this rank's
    // announcement, which follows.
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
        __syncthreads();
        fence_sys();  // the announcing thread releases what all threads have stored
        if (threadIdx.x == 0) mine->all_entered = 0;  // now that all threads have read it
    }
};

// The warps of a block, divided into groups for a number of jobs. With fewer warps or barriers than jobs, a group does
// several jobs. Each group has its own barrier, and waits for no other group.
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

    // A barrier of the group; returns whether `ok` holds on all its threads.
    __device__ bool everyone(bool ok) const { return !any_of_group(!ok, group, members); }

    static constexpr u32 kMaxGroups = 16;  // groups of a block; 0 is the block
};
