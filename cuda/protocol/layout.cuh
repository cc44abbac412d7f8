// What lies where: a communicator's lease of the symmetric heap, and what a kernel is told of it.
//
// Every rank of a communicator leases one region of its own heap; all regions have the same size and the
// same inner layout, so an offset means the same thing on every rank:
//
//   LeaseHeader | ChannelControl x channels | line slots | packet slots | chunk rings
//
// A *channel* is what block b of every rank forms together. It has its own epoch, slots and chunk
// rings, so that no kernel ever needs a barrier over its grid. `pyncclx/memory/layout.py` computes the offsets and
// packs `Team`; tests/host/test_layout.py compares the two sides.
#pragma once
#include "protocol/signal.cuh"

constexpr int kMaxRanks = 16;  // of one communicator: the ranks of one NVLink domain
constexpr int kMaxThreads = 512;   // of a block; a kernel bounded to 2 of them a multiprocessor is early on all channels
constexpr u32 kMostEarlyThreads = 32 * kMaxThreads;  // of a shuffle's kernel that is launched early
constexpr int kFoldThreads = 256;  // of a block that folds packets: each thread holds those of kAtOnce ranks
constexpr int kRings = 2;      // chunk rings of a channel: 0 takes what peers send, 1 what they reduced or relay
constexpr u32 kDepth = 2;      // chunks of a ring
constexpr u32 kLanes = 2;      // of a chain
constexpr u32 kPackNbytes = 16;
constexpr u32 kRowNbytes = 512;   // of a row of lines, see line.cuh
constexpr u32 kPacketNbytes = 8;  // payload of one packet, see packet.cuh
constexpr u32 kPacketsNbytes = 1 << 10;    // of a span: longer ones go as lines, if they fit their slots; but if spans go
constexpr u64 kLinesNbytes = 48 << 10;     //   both ways still longer ones as chunks,
constexpr u64 kStraightNbytes = 24 << 10;  //   or, where there are windows, straight

// Words of memory that host and device both see. The host owns `abort`, the device all others.
struct Watch {
    u64 abort;      // host: not 0 makes every wait of the communicator give up
    u64 failure;    // 0 none, kTimedOut or kAborted; the words below are written before it
    u64 operation;  // as given in Team
    u64 epoch, channel, peer, expected, seen;
    u64 overflow;  // 0 none, or an Overflow; the words below are written before it
    u64 source, wanted, capacity;
};
enum Failure : u64 { kTimedOut = 1, kAborted = 2 };
enum Overflow : u64 { kCut = 1, kBadCounts = 2, kTruncated = 3, kBadExpert = 4, kBadSegment = 5 };

struct alignas(128) LeaseHeader {
    u32 failed;    // the thread that turns it from 0 to 1 writes Watch::failure; every wait looks at it
    u32 overflow;  // the same for Watch::overflow
};

// Single writer per word: the comment says who.
struct alignas(128) ChannelControl {
    u32 epoch;                     // this rank's block: number of its last finished operation,
    u32 heard;                     //   and of the last one that every peer is known to have entered
    u32 entered[kMaxRanks];        // rank r: the operation it has begun
    u64 head[kRings][kMaxRanks];   // rank r: how far it has filled the ring it has in this lease
    u64 tail[kRings][kMaxRanks];   // rank r: how far it has emptied the ring this rank has in r's lease
    u64 came[kLanes];              // whoever is before this rank in a chain: how many pieces it has stored in this lease
    u64 taken[kLanes];             // whoever is next: how many it has taken, of those that this rank has stored
};

// Where a buffer lies, if all ranks have mapped it: in this rank's part of a window.
struct Place {
    u64 window;  // its number + 1; 0: the buffer is in no window
    char* begin;
};

// What a kernel is told of its communicator, and of this call's buffers; the first member of every kernel's arguments.
struct Team {
    int rank, size;
    u32 operation;     // for the error record
    u32 channels;      // of this communicator; a grid may use fewer
    u32 slot_packets;  // packets of one slot
    u32 chunk_nbytes;  // multiple of 16
    u32 slot_rows;     // rows of lines of one slot; 0: no lines between these ranks
    u32 early;         // not 0: this launch takes few multiprocessors, so that the next kernel may be launched early
    u64 lines_offset, packets_offset, rings_offset;  // bytes from the start of a lease
    u64 timeout_ns;
    Watch* watch;
    char* const* windows;   // [number of a window][kMaxRanks]: every rank's part, as mapped in this process
    char* base[kMaxRanks];  // every rank's lease, as mapped in this process
    Place send, recv;       // the only words here that may differ between two calls
};

struct ReduceArgs {  // Allreduce, Reduce, Reduce_scatter_block
    Team team;
    const char* send;
    char* recv;
    u64 nbytes;  // of the vector; Reduce_scatter_block: of one rank's block
    int root;
};

struct MoveArgs {  // Bcast (send = recv), Allgather, Alltoall
    Team team;
    const char* send;
    char* recv;
    u64 nbytes;  // of the message; Allgather, Alltoall: of one rank's block
    int root;
};

enum Placement : int { kPacked, kSlots, kFixed, kSender, kPlaced };  // of the rows that arrive, see alltoallv.cu

struct AlltoallvArgs {
    Team team;
    const char* send;
    char* recv;
    i64 row_nbytes;
    i64 send_rows;            // rows of sendbuf: none past it is read
    i64 capacity;             // rows of recvbuf (kPacked, kPlaced), of one source's slot (kSlots, kSender); none past it
                              //   is written
    i64 slot_rows;            // from one source's slot to the next (kSlots, kSender)
    const i64* send_counts;   // device memory, rows for each rank
    const i64* send_displs;   // device memory, in rows; null: prefix sum of the counts
    i64* recv_counts;         // outputs in device memory, each may be null: rows stored,
    i64* recv_displs;         //   where each source's begin (kPlaced: where they are to begin, an input),
    i64* total;               //   sum of recv_counts,
    i64* status;              //   rows of each source that did not fit
    int placement;
    int drop;                 // not 0: rows that do not fit are no error
    i64 fixed[4][kMaxRanks];  // kFixed: send counts, send displs, recv counts, recv displs
};

__device__ __forceinline__ LeaseHeader* lease_header(const Team& team) {
    return reinterpret_cast<LeaseHeader*>(team.base[team.rank]);
}

__device__ __forceinline__ ChannelControl* channel_control(const Team& team, int rank, int channel) {
    return reinterpret_cast<ChannelControl*>(team.base[rank] + sizeof(LeaseHeader)) + channel;
}
