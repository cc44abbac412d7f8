// The layout of a communicator's lease of the symmetric heap, and the arguments of kernels.
//
// Every rank of a communicator leases one region of its own heap. All regions have the same size and layout, so an offset
// is valid on every rank:
//
//   LeaseHeader | CallRecord | ChannelControl x channels | line slots | packet slots | chunk rings
//
// A *channel* consists of block b of every rank. It has its own epoch, slots and chunk rings, so that no kernel needs a
// barrier over its grid.
//
// Twins: pyncclx/memory/layout.py computes the offsets and packs `Team`; tests/host/memory/test_layout.py compares both.
// Where thresholds were measured (entries of docs/design_notes.md): kPacketsNbytes on 2 H200, kLinesNbytes and
// kStraightNbytes on 4 H200 ("Lines carry …"), kDepth on 4 H200 ("Rings are short and chunks long";
// examples/benchmarks/rings.py), kLanes on 4 H200 ("`Bcast` and long `Reduce` are chains").
#pragma once
#include "protocol/signal.cuh"

constexpr int kMaxRanks = 16;  // ranks of one communicator, in one NVLink domain
constexpr int kMaxThreads = 512;   // threads of a block; if two fit a multiprocessor, early launch is possible
constexpr u32 kMostEarlyThreads = 32 * kMaxThreads;  // all threads of a shuffle's kernel that is launched early
constexpr int kFoldThreads = 256;  // threads of a block that folds packets; each holds the packets of kAtOnce ranks
constexpr int kRings = 2;      // chunk rings of a channel: 0 for what peers send, 1 for what they reduced or relay
constexpr u32 kDepth = 2;      // chunks of a ring
constexpr u32 kLanes = 2;      // lanes of a chain
constexpr u32 kPackNbytes = 16;
constexpr u32 kRowNbytes = 512;   // bytes of a row of lines, see line.cuh
constexpr u32 kPacketNbytes = 8;  // payload of one packet, see packet.cuh
constexpr u32 kCalls = 4;         // records in a lease; a peer is at most two operations ahead
// Longest span that goes as packets. Longer spans go as lines if they fit their slots. If spans go both ways, spans longer
// than kLinesNbytes go as chunks; with windows, spans longer than kStraightNbytes are stored straight to their place.
constexpr u32 kPacketsNbytes = 1 << 10;
constexpr u64 kLinesNbytes = 48 << 10;
constexpr u64 kStraightNbytes = 24 << 10;

// A call as a program made it, without what may differ among ranks: its hash and its text, which the host computes, for
// example "Allreduce(100, float32, SUM)". In a lease the hash has the operation's epoch above it.
constexpr int kCallWords = 8;
struct Called {
    u64 words[kCallWords];  // the hash, then the text
};

// Words that host and device share. The host writes `abort`, the device all others.
struct Watch {
    u64 abort;      // host: if not 0, every wait of the communicator ends
    u64 failure;    // 0 none, or a Failure; the words below are written before it
    u64 operation;  // as given in Team
    u64 epoch, channel, peer, expected, seen;
    u64 overflow;  // 0 none, or an Overflow; the words below are written before it
    u64 source, wanted, capacity;
};
enum Failure : u64 { kTimedOut = 1, kAborted = 2, kMismatch = 4 };  // 3: of the host
enum Overflow : u64 { kCut = 1, kBadCounts = 2, kTruncated = 3, kBadExpert = 4, kBadSegment = 5 };

struct alignas(128) LeaseHeader {
    u32 failed;    // the thread that changes it from 0 to 1 writes Watch::failure; every wait polls it
    u32 overflow;  // the same for Watch::overflow
    u32 recorded_late;  // this rank: whether its block 0 has recorded a call after the failure
    u64 strips;         // this rank: strips given to its circles (line_chain.cuh); above it, blocks that have ended
};

struct alignas(128) CallRecord {
    Called calls[kCalls];  // this rank: its last calls; that of epoch e of channel 0 is at e % kCalls
};

// Each word has a single writer, which its comment names.
struct alignas(128) ChannelControl {
    u64 finished;                  // this rank: its last finished operation, as in `entered`
    u32 all_entered;               // this rank: the last operation that all peers are known to have entered
    u64 entered[kMaxRanks];        // rank r: the operation that it has begun; below it the hash of all its calls
    u64 head[kRings][kMaxRanks];   // rank r: how far it has filled its ring in this lease
    u64 tail[kRings][kMaxRanks];   // rank r: how far it has emptied this rank's ring in r's lease
    u64 came[kLanes];              // the previous rank of a chain: pieces that it has stored in this lease
    u64 taken[kLanes];             // the next rank of a chain: pieces of this rank that it has taken
};

// A buffer's place in this rank's part of a window.
struct Place {
    u64 window;  // its number + 1; 0: the buffer is in no window
    char* begin;
};

// A communicator, and this call's buffers: the first member of every kernel's arguments.
struct Team {
    int rank, size;
    u32 operation;     // for the error record
    u32 channels;      // channels of this communicator; a grid may use fewer
    u32 slot_packets;  // packets of one slot
    u32 chunk_nbytes;  // multiple of 16
    u32 slot_rows;     // rows of lines of one slot; 0: no lines between these ranks
    u32 early;         // not 0: this launch takes few multiprocessors, so the next kernel may be launched early
    u64 lines_offset, packets_offset, rings_offset;  // bytes from the start of a lease
    u64 timeout_ns;
    Watch* watch;
    char* const* windows;   // [number of a window][kMaxRanks]: every rank's part, as mapped in this process
    char* base[kMaxRanks];  // every rank's lease, as mapped in this process
    Place send, recv;       // these and `called` are the only words of Team that may differ between two calls
    Called called;          // all zero in kernels that are not collective operations
};

struct ReduceArgs {  // Allreduce, Reduce, Reduce_scatter_block
    Team team;
    const char* send;
    char* recv;
    u64 nbytes;  // bytes of the vector; Reduce_scatter_block: of one rank's block
    int root;
};

struct MoveArgs {  // Bcast (send = recv), Allgather, Alltoall
    Team team;
    const char* send;
    char* recv;
    u64 nbytes;  // bytes of the message; Allgather, Alltoall: of one rank's block
    int root;
};

enum Placement : int { kPacked, kSlots, kFixed, kSender, kPlaced };  // where arriving rows go, see alltoallv.cu

struct AlltoallvArgs {
    Team team;
    const char* send;
    char* recv;
    i64 row_nbytes;
    i64 send_rows;            // rows of sendbuf; no row after them is read
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

// Where the record of a rank's call in operation `epoch` of channel 0 is.
__device__ __forceinline__ Called* call_record(const Team& team, int rank, u32 epoch) {
    return &reinterpret_cast<CallRecord*>(team.base[rank] + sizeof(LeaseHeader))->calls[epoch % kCalls];
}

__device__ __forceinline__ ChannelControl* channel_control(const Team& team, int rank, int channel) {
    return reinterpret_cast<ChannelControl*>(team.base[rank] + sizeof(LeaseHeader) + sizeof(CallRecord)) + channel;
}
