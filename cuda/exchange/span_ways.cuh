// The transport of each span, and the peers of each warp; both are computed before the previous kernel has ended.
#pragma once
#include "protocol/line.cuh"
#include "protocol/packet.cuh"
#include "exchange/spans.cuh"

constexpr u32 kHeader = 2;        // packets at the start of every slot that carry no payload:
constexpr u32 kCountPacket = 0;   //   for the operation's own use,
constexpr u32 kPlacePacket = 1;   //   where a long span belongs

// Without kLong no span is long: the operation's `choose` has made sure that all of them fit packets or lines.
template <bool kLong>
struct SpanWaysOf {
    const Team& team;
    const u32 packets_nbytes, lines_nbytes;  // longest span that can go as packets, as lines
    const Crew crew;  // job j is the j-th peer; the last is this rank, whose span is copied while packets are awaited
    bool any_long = false;

    // Without `both_ways` spans go one way only; then lines are faster as long as they fit.
    __device__ explicit SpanWaysOf(const Team& team, bool both_ways = true)
        : team(team), packets_nbytes((team.slot_packets - kHeader) / 2 * kPackNbytes), lines_nbytes(find_lines(both_ways)),
          crew(u32(team.size)) {}

    // All threads, after thread r has written the spans out[r] and in[r]: a barrier, after which all threads read them.
    __device__ void share(const Spans& spans) {
        const int rank = int(threadIdx.x);
        const bool long_one = rank < team.size && (is_long(spans.out[rank]) || is_long(spans.in[rank]));
        any_long = __syncthreads_or(long_one) != 0;
    }

    __device__ bool is_long(const Span& span) const {
        return kLong && span.nbytes > packets_nbytes && span.nbytes > lines_nbytes;
    }

    // Whether the span goes as lines.
    __device__ bool is_medium(const Span& span) const {
        return span.nbytes > smaller(kPacketsNbytes, packets_nbytes) && span.nbytes <= lines_nbytes;
    }

    // Whether the span goes as packets, and there is any.
    __device__ bool goes_as_packets(const Span& span) const { return span.nbytes > 0 && !is_long(span) && !is_medium(span); }

    // All ranks make windows together, so all ranks have windows or none has.
    __device__ bool has_windows() const { return team.windows != nullptr; }

  private:
    __device__ u32 find_lines(bool both_ways) const {
        const u32 fits = team.slot_rows * kRowPacks * kPackNbytes;
        return both_ways ? u32(smaller(fits, has_windows() ? kStraightNbytes : kLinesNbytes)) : fits;
    }
};

using SpanWays = SpanWaysOf<true>;
