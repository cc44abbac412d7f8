"""Reads dumps of flight recorders in PyTorch's format as its analyser does: first the groups, then call by call."""

import ast
import math
import pickle
import re
from pathlib import Path

LIBRARIES = ("nccl", "xccl")  # that it accepts
COLLECTIVES = {  # that it accepts, of PyTorch 2.11; 2.14 accepts more
    *("broadcast", "reduce", "all_gather", "_all_gather_base", "all_reduce", "reduce_scatter", "gather", "scatter"),
    *("all_to_all", "all_reduce_barrier"),
}
# One length is the other times the size of the group.
GROWS = {"all_gather": ("input_sizes", "output_sizes"), "reduce_scatter": ("output_sizes", "input_sizes")}
STATES = {"scheduled", "started", "completed"}
_MESSAGE = re.compile(r"(send \d+->|recv \d+<-)(\d+|\?)")


def load(folder: Path, prefix: str) -> dict:
    """Return the dumps by rank: the files with the prefix, and a number behind it."""
    dumps = {int(path.name[len(prefix) :]): pickle.loads(path.read_bytes()) for path in folder.glob(f"{prefix}*")}
    for dump in dumps.values():
        major, minor = map(int, dump["version"].split("."))
        assert (major, minor) >= (2, 7)  # from which on groups have descriptions
    return dumps


def groups(dumps: dict) -> dict:
    """Return the ranks of each group, which all their dumps agree upon."""
    found: dict = {}
    for rank, dump in dumps.items():
        for name, config in dump["pg_config"].items():
            ranks = set(ast.literal_eval(config["ranks"]))
            assert config["name"] == name
            assert found.setdefault((name, config["desc"]), ranks) == ranks, rank
    return found


def calls(dump: dict) -> dict:
    """Return a rank's collectives by group and number, as what has to agree between ranks, and the state of each."""
    found: dict = {}
    for entry in sorted(dump["entries"], key=lambda each: each["record_id"]):
        library, name = entry["profiling_name"].split(":")
        assert library in LIBRARIES
        assert entry["state"] in STATES
        assert entry["frames"][0].keys() == {"name", "filename", "line"}
        if entry["is_p2p"]:
            assert _MESSAGE.fullmatch(name), name
            continue
        assert name in COLLECTIVES, name
        if name in GROWS:
            of_one, of_all = (math.prod(entry[sizes][0]) for sizes in GROWS[name])
            assert of_all == of_one * len(ast.literal_eval(dump["pg_config"][entry["process_group"][0]]["ranks"]))
        call = name, entry["input_sizes"], entry["output_sizes"], entry["input_dtypes"], entry["output_dtypes"]
        found[entry["process_group"][0], entry["collective_seq_id"]] = (call, entry["state"])
    return found


def findings(folder: Path, prefix: str) -> list[str]:
    """Return what is wrong: calls that ranks have not made, that differ, or that some have not completed."""
    dumps = load(folder, prefix)
    made = {rank: calls(dump) for rank, dump in dumps.items()}
    found = []
    for (name, _), ranks in groups(dumps).items():
        for key in sorted({key for each in made.values() for key in each if key[0] == name}):
            here = {rank: made[rank][key] for rank in ranks & made.keys() if key in made[rank]}
            missing = sorted(ranks - here.keys())
            if missing:
                found.append(f"call {key[1]} of group {name}: not made by ranks {missing}")
            if len({str(call) for call, _ in here.values()}) > 1:
                found.append(f"call {key[1]} of group {name}: differs between ranks {sorted(here)}")
            elif len({state for _, state in here.values()}) > 1:
                found.append(f"call {key[1]} of group {name}: completed on some ranks alone")
    return found
