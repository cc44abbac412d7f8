"""The server of MPI_Init under torchrun, as MPICH's processes talk to it."""

import signal
import socket
import subprocess
import sys

import pytest

import steps

SERVER = steps.ROOT / "pyncclx" / "torch" / "pmi_server.py"
TOKEN, SIZE, LIMIT_S = "secret", 3, 20.0


class Client:
    """A connection to a server."""

    def __init__(self, port, greeting):
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self.lines = self.socket.makefile("rw", newline="\n")
        self.say(greeting)

    def say(self, *lines):
        self.lines.write("".join(f"{line}\n" for line in lines))
        self.lines.flush()

    def ask(self, *lines):
        self.say(*lines)
        return self.hear()

    def hear(self):
        return self.lines.readline().rstrip("\n")

    def leave(self):
        self.lines.close()
        self.socket.close()


@pytest.fixture
def server():
    """Start a server for three ranks; return its process and port. At the end it must have ended by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-I", str(SERVER), str(listener.fileno()), str(SIZE), "200"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], text=True)
        port = listener.getsockname()[1]
    with process.stdin as pipe:
        pipe.write(f"{TOKEN}\n")
    try:
        yield process, port
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def ranks(port, nodes=("0", "0", "1")):
    """The connections of all ranks; each may begin."""
    clients = [Client(port, f"{TOKEN} {rank} {nodes[rank]}") for rank in range(SIZE)]
    assert [client.hear() for client in clients] == ["go"] * SIZE
    return clients


def test_values_and_barriers(server):
    _, port = server
    clients = ranks(port)
    for rank, client in enumerate(clients):
        assert client.ask("cmd=init pmi_version=1 pmi_subversion=1").startswith("cmd=response_to_init rc=0")
        assert client.ask(f"cmd=put kvsname=x key=of-{rank} value=a=b#{rank}") == "cmd=put_result rc=0"
    for client in clients:
        client.say("cmd=barrier_in")
    assert [client.hear() for client in clients] == ["cmd=barrier_out rc=0"] * SIZE
    for client in clients:
        found = [client.ask(f"cmd=get kvsname=x key=of-{rank}") for rank in range(SIZE)]
        assert found == [f"cmd=get_result rc=0 value=a=b#{rank}" for rank in range(SIZE)]
    assert clients[0].ask("cmd=get_my_kvsname") == f"cmd=my_kvsname rc=0 kvsname={TOKEN}"  # differs from job to job
    assert clients[1].ask("cmd=get kvsname=x key=none") == "cmd=get_result rc=-1 msg=not_found"
    blocks = clients[1].ask("cmd=get kvsname=x key=PMI_process_mapping")
    assert blocks == "cmd=get_result rc=0 value=(vector,(0,1,2),(1,1,1))"
    assert clients[2].ask("mcmd=spawn", "nprocs=1", "endcmd") == "cmd=spawn_result rc=-1"
    for client in clients:
        assert client.ask("cmd=finalize") == "cmd=finalize_ack rc=0"
        client.leave()


def test_a_rank_ends_while_others_are_in_a_barrier(server):
    """The barrier fails, and the next one too; signals do not end the server before the ranks."""
    process, port = server
    clients = ranks(port)
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    clients[0].say("cmd=barrier_in")
    clients[2].leave()
    failed = "cmd=barrier_out rc=-1 msg=a_rank_has_ended"
    assert clients[0].hear() == failed
    assert clients[1].ask("cmd=barrier_in") == failed
    for client in clients[:2]:
        assert client.ask("cmd=finalize") == "cmd=finalize_ack rc=0"
        client.leave()


def test_a_rank_ends_before_all_have_come(server):
    """The others get the reason. Who lacks the token is not admitted."""
    _, port = server
    for greeting in ("guess 2 0", "", "x" * 1000):
        stranger = Client(port, greeting)
        assert stranger.hear() == ""
        stranger.leave()
    clients = [Client(port, f"{TOKEN} {rank} 0") for rank in range(2)]
    clients[1].leave()
    assert clients[0].hear() == "rank 1 has ended"
    clients[0].leave()


def test_an_abort(server):
    """The rank that aborts gets its exit code on its other connection."""
    _, port = server
    others = [Client(port, f"{TOKEN} {rank} abort") for rank in range(SIZE)]
    clients = ranks(port)
    clients[1].say("cmd=abort exitcode=5")
    assert others[1].socket.recv(16) == b"5"
    for client in clients:
        client.leave()
    assert [other.hear() for other in others] == [""] * SIZE
