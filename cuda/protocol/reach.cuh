// Exchange of buffer places: where all ranks' buffers are, for operations that read or write them in place.
//
// Every rank sends every peer two packets that describe where its buffers are in windows (window.cuh). So all ranks
// compute the same `all` and `apart`, and choose the same transport.
#pragma once
#include "protocol/packet.cuh"
#include "protocol/window.cuh"

struct Reach {  // in shared memory: the ranks' buffers as mapped here, null where one is in no window
    const char* send[kMaxRanks];
    char* recv[kMaxRanks];
    bool all;    // all buffers that are needed are in windows
    bool apart;  // every recvbuf is in a window, and is not the rank's sendbuf
};

struct OwnBuffers {  // this rank's buffers, and their places in windows
    const char* send;
    char* recv;
    Place send_place, recv_place;
};

// All threads exchange places with all peers, and wait until these have entered the operation: the buffers' earlier
// contents are used by then. `sends(rank)`, `receives(rank)`: whether that rank's buffer is needed. False: leave.
template <class Sends, class Receives>
__device__ bool exchange_places(Packets& packets, const OwnBuffers& own, Sends sends, Receives receives, Reach& reach) {
    Channel& channel = packets.channel;
    const Team& team = channel.team;
    if (!channel.await_slots()) return false;
    const int rank = int(threadIdx.x);
    u64 send_word = pack_place(own.send_place, own.send), recv_word = pack_place(own.recv_place, own.recv);
    bool ok = true;
    if (channel.is_peer(rank)) {
        packets.send_word(packets.outbox(rank), 0, send_word);
        packets.send_word(packets.outbox(rank), 1, recv_word);
        ok = packets.receive_word(rank, 0, send_word) && packets.receive_word(rank, 1, recv_word) &&
             channel.wait_for_entered(rank, channel.epoch);
    }
    bool there = true, apart = true;
    if (rank < team.size) {
        reach.send[rank] = unpack_place(team, rank, send_word);
        reach.recv[rank] = unpack_place(team, rank, recv_word);
        there = (send_word != 0 || !sends(rank)) && (recv_word != 0 || !receives(rank));
        apart = recv_word != 0 && recv_word != send_word;
    }
    const bool all = channel.everyone(there), all_apart = channel.everyone(apart);
    if (rank == 0) {
        reach.all = all;
        reach.apart = all_apart;
    }
    return channel.everyone(ok);
}
