// Alltoallv of segments: sendbuf is divided into segments of rows; each goes to any number of ranks, or to none.
//
// Two launches, for any numbers on the device:
//   1. `list_segments`, one block: every rank sends every peer how long its segments are, and which of them the peer will get.
//      From that all ranks compute where every row belongs. This kernel writes the outputs for the caller.
//   2. `move_segments`, one block for each channel in use: the rows move, as chunks. What goes to a rank is a *stream*: its
//      segments in ascending order, each beginning with a new pack, so that a pack belongs to one segment.
// Between the two launches everything is in this rank's memory (`words`, `ends`, `begins`, `ranges` of SegmentsArgs).
// The idea is that of NCCLX's paper (arXiv 2510.20171), where the non-contiguous split is the dispatch of tokens.
#include "exchange/exchange.cuh"
#include "exchange/rows.cuh"

enum Way : int { kOut, kIn, kWays };

struct SegmentsArgs {
    AlltoallvArgs rows;     // send_counts: how many of `ids` each rank gets
    const i64* lengths;     // [segments], in rows
    const i64* ids;         // [ids_count]: the segments for rank 0, for rank 1, …
    i64* all_lengths;       // [size][segments], an output, may be null
    i64 segments, ids_count;
    u64* words[kWays];      // [size][segments]: what a peer needs of a segment, see segment_word
    u64* ends[kWays];       // [size][segments]: where it ends in its stream, in packs
    i64* begins[kWays];     // [segments], [size][segments]: its first row, in sendbuf, or from that of its source on
    i64* ranges;            // [2][size]: where a source's rows begin in recvbuf, and where its room ends
};

__device__ __forceinline__ u64 segment_word(i64 rows, bool goes) { return u64(rows) << 1 | goes; }
__device__ __forceinline__ i64 segment_rows(u64 word) { return i64(word >> 1); }
__device__ __forceinline__ bool segment_goes(u64 word) { return word & 1; }

__device__ void report(const SegmentsArgs& args, i64 index, i64 found, i64 most) {
    record_overflow(args.rows.team, kBadSegment, int(index), found, most);
}

// A warp computes where this rank's segments begin, and initialises their words: so far they go to no rank.
__device__ void read_lengths(const SegmentsArgs& args) {
    i64 used = 0;
    for (i64 first = 0; first < args.segments; first += 32) {
        const i64 i = first + threadIdx.x % 32;
        const i64 given = i < args.segments ? args.lengths[i] : 0, room = args.rows.send_rows;
        const bool sound = given >= 0 && given <= room;
        const i64 end = used + sum_to_lane(sound ? given : 0), length = sound && end <= room ? given : 0;
        if (length != given) report(args, i, given, room);
        if (i < args.segments) args.begins[kOut][i] = end - (sound ? given : 0);
        for (int rank = 0; i < args.segments && rank < args.rows.team.size; ++rank)
            args.words[kOut][rank * args.segments + i] = segment_word(length, false);
        used = __shfl_sync(0xffffffffu, end, 31);
    }
}

// All threads mark the segments that go to each rank.
__device__ void read_ids(const SegmentsArgs& args) {
    i64 begin = 0;
    for (int rank = 0; rank < args.rows.team.size; ++rank) {
        const i64 given = args.rows.send_counts[rank], room = args.ids_count - begin;
        const i64 count = given < 0 || given > room ? 0 : given;
        if (count != given && threadIdx.x == 0) report(args, rank, given, room);
        for (i64 j = begin + threadIdx.x; j < begin + count; j += blockDim.x) {
            const i64 id = args.ids[j];
            if (id < 0 || id >= args.segments) report(args, j, id, args.segments - 1);
            else args.words[kOut][rank * args.segments + id] |= 1;  // a repeated id changes nothing
        }
        begin += count;
    }
}

// A warp lists the stream from or to `rank`, and where its segments begin. Returns its rows; `fitting_rows`: of a source, the
// rows that fit a slot if they keep the sender's places.
__device__ i64 find_stream(const SegmentsArgs& args, Way way, int rank, i64& fitting_rows) {
    const bool in_place = args.rows.placement == kSender;
    i64 all = 0, going = 0;
    u64 packs = 0;
    fitting_rows = 0;
    for (i64 first = 0; first < args.segments; first += 32) {
        const i64 i = first + threadIdx.x % 32, at = rank * args.segments + i;
        const u64 word = i < args.segments ? args.words[way][at] : 0;
        const i64 rows = segment_rows(word), gone = segment_goes(word) ? rows : 0;
        const i64 all_end = all + sum_to_lane(rows), going_end = going + sum_to_lane(gone);
        const u64 end = packs + sum_to_lane(packs_in(u64(gone) * args.rows.row_nbytes));
        const i64 begin = in_place ? all_end - rows : going_end - gone;
        if (i < args.segments) args.ends[way][at] = end;
        if (i < args.segments && way == kIn) args.begins[way][at] = begin;
        if (i < args.segments && way == kIn && args.all_lengths) args.all_lengths[at] = rows;
        fitting_rows += __shfl_sync(0xffffffffu, sum_to_lane(fitting(gone, begin, args.rows.capacity)), 31);
        all = __shfl_sync(0xffffffffu, all_end, 31);
        going = __shfl_sync(0xffffffffu, going_end, 31);
        packs = __shfl_sync(0xffffffffu, end, 31);
    }
    return going;
}

// Where the rows of the lane's rank belong, given the rows received from each rank. All lanes of a warp.
__device__ Row range_of(const SegmentsArgs& args, const i64* received, const i64* fitting_rows) {
    const int rank = int(threadIdx.x % 32);
    const bool exists = rank < args.rows.team.size;
    if (args.rows.placement != kSender) return row_from(args.rows, exists ? received[rank] : 0);
    return exists ? Row{received[rank], rank * args.rows.slot_rows, fitting_rows[rank]} : Row{};
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) list_segments(const __grid_constant__ SegmentsArgs args) {
    __shared__ Spans spans;
    __shared__ i64 received[kMaxRanks], fitting_rows[kMaxRanks];
    const Team& team = args.rows.team;
    const int warp = int(threadIdx.x / 32), warps = int(blockDim.x / 32), rank = int(threadIdx.x);
    SpanWays ways(team);
    Channel channel(team);
    Packets packets(channel);
    if (warp == 0) read_lengths(args);
    __syncthreads();
    read_ids(args);
    const u64 nbytes = u64(args.segments) * sizeof(u64);
    if (rank < team.size) {
        spans.out[rank] = Span{reinterpret_cast<char*>(args.words[kOut] + rank * args.segments), nbytes, nbytes};
        spans.in[rank] = Span{reinterpret_cast<char*>(args.words[kIn] + rank * args.segments), nbytes, nbytes};
    }
    Exchange exchange{channel, packets, spans, ways};
    ways.share(spans);
    bool ok = channel.await_slots();
    if (ok) exchange.send();
    ok = ok && exchange.receive(channel.compare([](int) { return true; }));
    ok = channel.everyone(ok);
    for (int job = warp; ok && job < kWays * team.size; job += warps) {
        i64 room = 0;
        const i64 rows = find_stream(args, job < team.size ? kOut : kIn, job % team.size, room);
        if (job < team.size || threadIdx.x % 32 != 0) continue;
        received[job % team.size] = rows;
        fitting_rows[job % team.size] = room;
    }
    __syncthreads();
    if (ok && warp == 0) {
        const Row row = range_of(args, received, fitting_rows);
        const bool in_slots = args.rows.placement == kSlots || args.rows.placement == kSender;
        if (rank < team.size) {
            args.ranges[rank] = row.displ;
            args.ranges[team.size + rank] = in_slots ? row.displ + args.rows.capacity : row.displ + row.kept;
        }
        write_outputs(args.rows, row);
    }
    channel.leave(ok && nbytes > 0);
}

struct Segment {
    i64 at;         // index in a table of all ranks' segments
    i64 number;     // index among its source's segments
    u64 pack;       // of the segment
};

// This block's part of a stream, in packs.
struct Stream {
    const u64* ends;
    i64 table, segments;
    u64 begin, packs;

    __device__ Stream(const SegmentsArgs& args, Way way, int rank)
        : ends(args.ends[way] + rank * args.segments), table(rank * args.segments), segments(args.segments) {
        const u64 all = segments == 0 ? 0 : ends[segments - 1];
        const Part part(all * kPackNbytes, gridDim.x, blockIdx.x);
        begin = part.begin / kPackNbytes;
        packs = part.nbytes / kPackNbytes;
    }

    // The segment of pack i of the part: the first one that ends behind it.
    __device__ Segment find(u64 i) const {
        i64 low = 0, high = segments - 1;
        while (low < high) {
            const i64 middle = (low + high) / 2;
            if (ends[middle] > begin + i) high = middle;
            else low = middle + 1;
        }
        return Segment{table + low, low, begin + i - (low == 0 ? 0 : ends[low - 1])};
    }
};

__device__ Pack load_of(const SegmentsArgs& args, const Stream& stream, u64 i) {
    const Segment segment = stream.find(i);
    const u64 nbytes = u64(segment_rows(args.words[kOut][segment.at])) * args.rows.row_nbytes;
    return load_pack(args.rows.send + args.begins[kOut][segment.number] * args.rows.row_nbytes, segment.pack, nbytes);
}

__device__ void store_of(const SegmentsArgs& args, const Stream& stream, int source, u64 i, Pack pack) {
    const Segment segment = stream.find(i);
    const i64 row = args.ranges[source] + args.begins[kIn][segment.at];
    const i64 kept = fitting(segment_rows(args.words[kIn][segment.at]), row, args.ranges[args.rows.team.size + source]);
    store_pack(args.rows.recv + row * args.rows.row_nbytes, segment.pack, u64(kept) * args.rows.row_nbytes, pack);
}

// Jobs 0 … peers - 1 store for a peer, the next `peers` jobs take from one, the last job copies this rank's own rows.
__device__ bool move_streams(const SegmentsArgs& args, Channel& channel) {
    const int size = args.rows.team.size, me = args.rows.team.rank, peers = size - 1;
    Chunks chunks(channel, 1);
    const u64 each = chunks.nbytes / kPackNbytes;
    u64 longest = 0;
    for (int rank = 0; rank < size; ++rank) {
        const u64 out = Stream(args, kOut, rank).packs, in = Stream(args, kIn, rank).packs;
        if (rank != me && longest < (out < in ? in : out)) longest = out < in ? in : out;
    }
    const Crew crew(u32(2 * peers + 1));
    bool ok = true;
    for (u64 round = 0; ok && round <= (longest + each - 1) / each; ++round)
        for (u32 job = crew.first_job; ok && job <= u32(2 * peers); job += crew.next_job) {
            const bool sends = job < u32(peers), copies = job == u32(2 * peers);
            const int peer = copies ? me : channel.peer(int(job) % peers);
            const Stream out(args, kOut, peer), in(args, kIn, peer);
            const u64 k = sends ? round : round - 1, begin = k * each;  // nothing is taken in the first round
            if (copies && round == 0) {
                for (u64 i = crew.member; i < out.packs; i += crew.members) store_of(args, in, me, i, load_of(args, out, i));
            } else if (sends && begin < out.packs) {
                const u64 nbytes = smaller(each, out.packs - begin) * kPackNbytes;
                ok = chunks.store(crew, 0, peer, k, nbytes, [&](u64 i) { return load_of(args, out, begin + i); });
            } else if (!sends && !copies && round > 0 && begin < in.packs) {
                const u64 nbytes = smaller(each, in.packs - begin) * kPackNbytes;
                ok = chunks.take(crew, 0, peer, k, nbytes, [&](u64 i, Pack pack) { store_of(args, in, peer, begin + i, pack); });
            }
        }
    return channel.everyone(ok);
}

template <class = void>
__global__ void __launch_bounds__(kMaxThreads, 1) move_segments(const __grid_constant__ SegmentsArgs args) {
    Channel channel(args.rows.team);
    move_streams(args, channel);
    channel.leave();
}
