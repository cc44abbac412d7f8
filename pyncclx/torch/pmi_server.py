"""The program that serves MPI_Init under torchrun, by MPICH's protocol PMI-1.

    python pmi_server.py LISTENER SIZE SECONDS

LISTENER is the file descriptor of a listening socket, SIZE the number of the job's ranks, SECONDS the time in which all
must connect. Standard input has the job's token. `pmi_client.py` starts the program on rank 0. It is not a thread,
because mpi4py holds Python's lock in MPI_Init and MPI_Finalize. It imports the standard library alone, so it starts
fast.

Each rank connects twice: MPICH uses one connection, and over the other one the rank gets the exit code of its
MPI_Abort. A connection begins with the line "TOKEN RANK NODE" or "TOKEN RANK abort".
"""

import asyncio
import signal
import socket
import sys
from itertools import groupby

GREETING = 3  # words


class Job:
    """The connections and values of a job's ranks.

    Parameters
    ----------
    size : int
        The number of ranks.
    token : str
        What each process must send first.
    """

    def __init__(self, size: int, token: str) -> None:
        self.size, self.token = size, token
        # Keys are ranks.
        self.clients: dict[int, asyncio.StreamWriter] = {}
        self.for_aborts: dict[int, asyncio.StreamWriter] = {}
        self.nodes: dict[int, str] = {}
        self.values: dict[str, str] = {}
        self.in_barrier: list[asyncio.StreamWriter] = []
        self.has_begun, self.failure = False, ""
        self.decided, self.over = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Admit a process, and answer it until it closes the connection."""
        words = (await reader.readline()).decode(errors="replace").split()
        if len(words) != GREETING or words[0] != self.token or self.failure:
            writer.close()
        elif words[2] == "abort":
            self.for_aborts[int(words[1])] = writer
        else:
            await self._serve(int(words[1]), words[2], reader, writer)

    async def _serve(self, rank: int, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients[rank], self.nodes[rank] = writer, node
        if len(self.clients) == self.size:
            self.begin()
        command = ""
        try:
            while line := (await reader.readline()).decode():
                command = self.answer(rank, line)
        except ConnectionError:  # the process was killed
            pass
        if command != "finalize":
            self.fail(f"rank {rank} has ended")
        writer.close()
        del self.clients[rank]
        if not self.clients:
            self.over.set()

    def begin(self) -> None:
        """Let all ranks call MPI_Init, as all are connected."""
        self.values["PMI_process_mapping"] = mapping([self.nodes[rank] for rank in range(self.size)])
        self.has_begun = True
        self.decided.set()
        for client in self.clients.values():
            client.write(b"go\n")

    def fail(self, reason: str) -> None:
        """End all waits: ranks before MPI_Init get the reason, PMI's barrier fails."""
        self.failure = self.failure or reason
        self.decided.set()
        if not self.has_begun:
            for client in self.clients.values():
                client.write(f"{self.failure}\n".encode())
                client.close()
        self._leave_barrier("rc=-1 msg=a_rank_has_ended")

    def answer(self, rank: int, line: str) -> str:
        """Answer a line of PMI-1; return its command."""
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            self._enter_barrier(self.clients[rank])
        elif command == "abort" and rank in self.for_aborts:
            self.for_aborts[rank].write(words.get("exitcode", "1").encode())
        elif command:
            self.clients[rank].write(f"{self.reply(command, words)}\n".encode())
        elif line.startswith("endcmd"):  # the last line of a request for processes
            self.clients[rank].write(b"cmd=spawn_result rc=-1\n")
        return command

    def _enter_barrier(self, client: asyncio.StreamWriter) -> None:
        self.in_barrier.append(client)
        if self.failure:
            self.fail(self.failure)
        elif len(self.in_barrier) == self.size:
            self._leave_barrier("rc=0")

    def _leave_barrier(self, result: str) -> None:
        for client in self.in_barrier:
            client.write(f"cmd=barrier_out {result}\n".encode())
        self.in_barrier.clear()

    def reply(self, command: str, words: dict[str, str]) -> str:
        """Return the reply to a command that waits for no other rank."""
        if command == "put":
            self.values[words["key"]] = words["value"]
        if command == "get" and words["key"] in self.values:
            return f"cmd=get_result rc=0 value={self.values[words['key']]}"
        replies = {
            "init": "response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": "maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024",
            "get_appnum": "appnum rc=0 appnum=0",
            # MPICH derives names of files in /dev/shm from this name. Killed jobs leave such files behind.
            "get_my_kvsname": f"my_kvsname rc=0 kvsname={self.token}",
            "get_universe_size": f"universe_size rc=0 size={self.size}",
            "put": "put_result rc=0",
            "finalize": "finalize_ack rc=0",
        }
        return "cmd=" + replies.get(command, f"{command}_result rc=-1 msg=not_found")


def mapping(nodes: list[str]) -> str:
    """Return PMI's description of each rank's node.

    It consists of blocks of (first node, number of nodes, ranks of each node).

    >>> mapping(["a", "a", "b", "b", "c"])
    '(vector,(0,2,2),(2,1,1))'
    """
    blocks, first = "", 0
    for count, alike in groupby(len(list(ranks)) for _, ranks in groupby(nodes)):
        number = len(list(alike))
        blocks += f",({first},{number},{count})"
        first += number
    return f"(vector{blocks})"


async def main(listener: socket.socket, size: int, token: str, seconds: float) -> None:
    """Serve a job until all of its processes have closed their connections."""
    job = Job(size, token)
    server = await asyncio.start_server(job.serve, sock=listener)
    try:
        await asyncio.wait_for(job.decided.wait(), seconds)
    except asyncio.TimeoutError:
        late = ", ".join(str(rank) for rank in range(size) if rank not in job.clients)
        job.fail(f"after {seconds:g} s (PYNCCLX_TIMEOUT) these ranks are still missing: {late}")
    if job.clients:
        await job.over.wait()
    server.close()


if __name__ == "__main__":
    # The program ends when all ranks have. torchrun signals it with rank 0, which may still need it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    of_listener = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(main(of_listener, int(sys.argv[2]), sys.stdin.readline().strip(), float(sys.argv[3])))
