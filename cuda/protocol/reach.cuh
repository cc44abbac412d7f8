// Where all ranks' buffers lie: what an operation has to know that reads or writes them in place.
//
// Every rank tells every other, in two packets, where its buffers are in windows (window.cuh). So all of them know
// whether all do, and take the same way.
#pragma once
#include "protocol/packet.cuh"
#include "protocol/window.cuh"

struct Reach {  // in shared memory: the ranks' buffers as mapped here, null where one is in no window
    const char* send[kMaxRanks];
    char* recv[kMaxRanks];
    bool all;    // those that are needed lie in windows
    bool apart;  // every recvbuf lies in one, and is no sendbuf
};

struct Own {  // a rank's own buffers, and where it may say they lie
    const char* send;
    char* recv;
    Place send_place, recv_place;
};

// All threads exchange places with all peers, and wait until they have entered: what was in the buffers before has
// been used by then. `sends(rank)` and `receives(rank)` tell whose buffers are needed. False: leave.
template <class Sends, class Receives>
__device__ bool learn_reach(Packets& packets, const Own& own, Sends sends, Receives receives, Reach& reach) {
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
