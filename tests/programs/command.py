"""The command line of run.py: draw programs, perform and compare them, report what differs."""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from programs import several
from programs.compare import differences
from programs.draw import SUBJECTS, programs
from programs.job import Jobs, Outcome, build_kernels, jobs
from programs.program import Program, read
from programs.shrink import shrunk
from programs.ways import WAYS

BATCH = 25  # programs of one seed
TRIES, SLOW_TRIES = 300, 20  # of the shrinking of one finding; a program that hangs takes seconds each time


class Net:
    """Performs programs in several ways, and keeps what it has found."""

    def __init__(self, jobs_of_ways: Jobs, ways: list[str], findings: Path | None = None) -> None:
        self.jobs, self.ways, self.findings = jobs_of_ways, ways, findings
        self.last: list[str] = []
        self.detail = ""  # tracebacks of the last that differed
        self.is_of_oracle = False

    def keep(self, name: str, program: Program, texts: list[str], detail: str) -> None:
        """Write a program, all that differs in it, and tracebacks, in a file that --replay reads."""
        if self.findings:
            self.findings.mkdir(parents=True, exist_ok=True)
            comments = "".join(f"# {line}\n" for text in (*texts, detail) for line in text.splitlines())
            (self.findings / f"{name}.py").write_text(program.listing() + comments)

    def texts(self, program: Program) -> list[str]:
        """Return what differs in a program, in the first way in which anything does."""
        self.last = self._texts(program)
        return self.last

    def counts(self, program: Program, name: str) -> bool:
        """Keep what differs; return whether it counts: a wait that ran out, as it may on a busy machine, twice."""
        self.keep(f"{name}.whole", program, self.last, self.detail)
        if not is_slow(self.last) or self.texts(program):
            return True
        print(f"\n# seed {name}: a wait ran out once, but not again", flush=True)
        return False

    def _texts(self, program: Program) -> list[str]:
        outcomes: dict[str, Outcome] = {}
        for way in ("plain", *self.ways):
            outcomes[way] = self.jobs.by_way[way].perform(program)
            texts = self.compared(outcomes)
            if texts:
                return texts
        return []

    def compared(self, outcomes: dict[str, Outcome]) -> list[str]:
        """Return what differs between the outcomes of one program, in the first way in which anything does."""
        for way, found in outcomes.items():
            # if the first goes wrong, the program is not legal, or mpi4py is wrong
            texts = found.errors if way == "plain" else differences(outcomes["plain"], found)
            if texts:
                self.detail = found.detail
                self.jobs.by_way[way].end()
                return [f"{way}: {text}" for text in texts]
        return []

    def differing(self, programs: Sequence[Program], names: Sequence[str]) -> Iterator[tuple[Program, str]]:
        """Perform programs in all ways; yield those that differ."""
        of_ways = self.jobs.perform_all(programs)
        for number, (program, name) in enumerate(zip(programs, names, strict=True)):
            self.last = self.compared({way: outcomes[number] for way, outcomes in of_ways.items()})
            if self.last and self.counts(program, name):
                yield program, name

    def shrink(self, program: Program, seconds: float) -> tuple[Program, list[str], str]:
        """Return a shorter program that differs, how, and tracebacks."""
        found: dict[Program, tuple[list[str], str]] = {program: ([], "")}

        def differs(candidate: Program) -> bool:
            if candidate.ranks != self.jobs.ranks:
                return False
            texts = self._texts(candidate)
            if texts and texts[0].startswith("plain:") == self.is_of_oracle:
                found[candidate] = texts, self.detail
                return True
            return False

        best = shrunk(program, differs, seconds, SLOW_TRIES if is_slow(self.last) else TRIES)
        return best, *found[best]


def is_slow(texts: list[str]) -> bool:
    """Return whether waits ran out, and nothing else went wrong."""
    slow = ("did not end", "Timeout", "RanksMissing")
    return bool(texts) and all(any(word in text for word in slow) for text in texts)


def drawn(seed: int, ranks: int, subjects: tuple[str, ...]) -> list[Program]:
    """Return the programs of a seed."""
    found: list[Program] = []

    @seeded(seed)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs(ranks, subjects))
    def keep(program: Program) -> None:
        found.append(program)

    keep()
    return found


def ranks_of(seed: int, ranks: list[int]) -> int:
    """Return the number of ranks of a seed; many seeds in a row have one number, whose jobs then live longer."""
    return ranks[seed // 8 % len(ranks)]


def main(description: str) -> int:
    """Look at programs as the command line says; return 1 if any differs."""
    options = parsed(description)
    build_kernels()
    if options.replay:
        return replay(options)
    if options.jobs > 1:
        result = several.run(passed_on(), options.jobs, options.programs or 1, options.seed)
    else:
        result = one(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    if options.jobs > 1:
        print(f"{result['programs']} programs, {result['seconds']:.0f} s: {len(result['found'])} differ", flush=True)
    return int(bool(result["found"]))


def passed_on() -> list[str]:
    """Return the arguments of this command that each of several nets has, too."""
    parser = argparse.ArgumentParser()
    for name in ("--jobs", "--programs", "--seed", "--json"):
        parser.add_argument(name)
    return parser.parse_known_args()[1]


def one(options: argparse.Namespace) -> dict[str, Any]:
    """Look at the programs of one seed after another."""
    begin, found, done, seed = time.monotonic(), [], 0, options.seed

    def is_over() -> bool:
        return 0 < done >= (options.programs or 0) or time.monotonic() - begin > options.seconds

    while not is_over():
        ranks = ranks_of(seed, options.ranks)
        with jobs(["plain", *options.ways], ranks) as made:
            net = Net(made, options.ways, options.findings)
            while ranks_of(seed, options.ranks) == ranks and not is_over():
                batch = drawn(seed, ranks, tuple(options.subjects))
                names = [f"{seed}_{ranks}_{index}" for index in range(len(batch))]
                for program, name in net.differing(batch, names):
                    found.append(look_into(net, program, name, options))
                done, seed = done + len(batch), seed + 1
                if options.progress:
                    print(f"{done} programs after {time.monotonic() - begin:.0f} s", flush=True)
        print(f"{done} programs, seeds {options.seed} to {seed - 1}, {time.monotonic() - begin:.0f} s:", end=" ")
        print(f"{len(found)} differ", flush=True)
    return {"programs": done, "seconds": time.monotonic() - begin, "found": found}


def look_into(net: Net, program: Program, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Shrink what differs, print it, and write it where --replay finds it; return it for the summary."""
    first = net.last
    net.is_of_oracle = first[0].startswith("plain:")
    ways, net.ways = net.ways, [way for way in net.ways if first[0].startswith(f"{way}:")]
    best, texts, shorter = net.shrink(program, options.shrink)
    net.ways = ways
    again = [] if texts else ["alone it does not differ again"]
    lines = [f"seed {name}", *again, *(texts or first)[:12]]
    listing = "".join(f"# {text}\n" for text in lines) + best.listing()
    print(f"\n{listing}", flush=True)
    net.keep(name, best, lines, shorter)
    return {"seed": name, "texts": lines[1:], "listing": best.listing()}


def replay(options: argparse.Namespace) -> int:
    """Perform the program of a file."""
    program = read(options.replay.read_text())
    with jobs(["plain", *options.ways], program.ranks) as made:
        net = Net(made, options.ways)
        for _ in range(options.times):
            texts = net.texts(program)
            print("\n".join(texts) or "equal", net.detail if options.verbose else "", flush=True)
    return int(bool(texts))


def parsed(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, metavar="N", help="at least so many (without it, one batch)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many nets at once (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a summary to this file, too")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no batch after these")
    parser.add_argument("--seed", type=int, default=1, help="of the first batch; each has the next (default 1)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 1])
    parser.add_argument("--ways", nargs="+", default=[way for way in WAYS if way != "plain"], choices=list(WAYS))
    parser.add_argument("--subjects", nargs="+", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--findings", type=Path, help="a folder for the listings of what differs")
    parser.add_argument("--shrink", type=float, default=60.0, metavar="SECONDS", help="for each finding (default 60)")
    parser.add_argument("--replay", type=Path, help="a file with a listing")
    parser.add_argument("--times", type=int, default=1, help="how often to replay")
    parser.add_argument("--progress", action="store_true", help="a line after each batch")
    parser.add_argument("--verbose", action="store_true", help="tracebacks and stacks of a replay")
    return parser.parse_args()
