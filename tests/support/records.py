"""Records of ranks as flight recorders would have them, made by hand: for tests of the analyser."""

from pyncclx.tools.observe.job import Job, Rank

S = 10**9


class FakeRank:
    """One rank's calls, each a hundredth of a second after the one before."""

    def __init__(self, number, size=3, host="a", **process):
        self.entries, self.comms, self.failures, self.number, self.size = [], {}, [], number, size
        self.process = {"rank": number, "size": size, "host": host, "pid": 100 + number, "versions": {}, "settings": {}}
        self.process |= process
        self.now_ns = 1000 * S
        self.state, self.live, self.extra = "running", None, {"reason": "SIGUSR1"}
        self.comm("MPI_COMM_WORLD")

    def comm(self, name="", number=0, world=None, kind="comm"):
        world = list(range(self.size)) if world is None else world
        fields = {"kind": kind, "number": number, "name": name, "rank": 0, "size": len(world), "world": world}
        self.comms[len(self.comms) + 1] = fields
        return len(self.comms)

    def _add(self, operation, kind, comm, ended, **fields):
        self.now_ns += S // 100
        number = fields.pop("number", 0)
        entry = {
            "sequence": len(self.entries) + 1, "number": number, "operation": operation, "kind": kind, "comm": comm,
            "algorithm": "", "datatype": "", "operator": "", "site": "/home/me/train.py:88 in step",
            "elements": 0, "nbytes": 0, "stream": 0, "peer": -1, "tag": -1, "signature": 0, "flags": [],
            "began_ns": self.now_ns, "ended_ns": self.now_ns + 1000 if ended else None,
            **fields,
        }
        self.entries.append(entry)
        return entry

    def call(self, operation="Allreduce", comm=1, kind="collective", ended=False, **fields):
        numbers = [entry["number"] for entry in self.entries if entry["comm"] == comm]
        return self._add(operation, kind, comm, ended, **{"number": max(numbers, default=0) + 1, **fields})

    def beginning(self, operation="Allreduce", comm=1):
        return self._add(operation, "collective", comm, False)

    def message(self, operation, peer, tag, ended=False, comm=1):
        return self._add(operation, "message", comm, ended, peer=peer, tag=tag)

    def lock(self, operation, target, window, ended=True):
        return self._add(operation, "access", window, ended, peer=target)

    def fails(self, kind, text="", unhandled=False, after_s=3.0, **fields):
        self.now_ns += int(after_s * S)
        failure = {"time_ns": self.now_ns, "kind": kind, "text": text, "site": "/home/me/train.py:90 in step"}
        self.failures.append(failure | {"unhandled": unhandled, "fields": fields})

    def at(self, site, inside=False):
        self.extra["stacks"] = [{"thread": "MainThread", "main": True, "site": site, "inside": inside, "frames": []}]

    def waits_for(self, what, detail="", comm=1):
        self.live = {"what": what, "detail": detail, "comm": comm, "since_ns": self.now_ns}

    def progress(self, epoch, entered=(), skipped=0, comm=1):
        self.extra.setdefault("progress", {})[str(comm)] = {"epoch": epoch, "entered": entered, "skipped": skipped}

    def rank(self, at_ns):
        record = {"process": self.process, "state": self.state, "live": self.live, "comms": self.comms}
        record |= {"entries": self.entries, "failures": self.failures, "started": 1, "file": None, **self.extra}
        return Rank(record, max(at_ns, self.now_ns))


def job_of(ranks, later_s=10.0):
    """The job, looked at so long after the last call."""
    at_ns = max(rank.now_ns for rank in ranks) + int(later_s * S)
    return Job({rank.number: rank.rank(at_ns) for rank in ranks})


def well(size=3, calls=10, **process):
    """Ranks that have made some calls together."""
    ranks = [FakeRank(number, size, **process) for number in range(size)]
    for rank in ranks:
        for _ in range(calls):
            rank.call(signature=5)
    return ranks
