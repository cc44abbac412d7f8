"""Network interfaces of a job's nodes, and the rails that use them, for `info`.

Rail k is the link of the ranks with local index k. NCCL assigns a rail the interface that is nearest to its GPU on the
PCI bus. `assigned` guesses this assignment from /sys; NCCL's log has the real one.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

import mpi_bootstrap

from ...system import driver, settings

SYS = Path("/sys")
# Variables that choose interfaces.
_SETTINGS = (
    *("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NETDEVS_POLICY", "NCCL_SOCKET_IFNAME"),
    *("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include", "MPICH_NETWORK_IFACE"),
)

Facts = dict[str, Any]


def gather(place: mpi_bootstrap.Topology) -> list[Facts]:
    """Return each node's GPUs and adapters on rank 0 (collective over COMM_WORLD)."""
    world = MPI.COMM_WORLD
    # Split off one communicator of the nodes' first ranks, and one of the others.
    firsts = world.Split(int(place.local_rank > 0), place.rank)
    own = of_node(place) if place.local_rank == 0 else None
    found = [each for each in firsts.gather(own) or [] if each is not None]
    firsts.Free()
    return found if place.rank == 0 else []


def of_node(place: mpi_bootstrap.Topology, sys: Path = SYS) -> Facts:
    """Return the name, ranks, network adapters and settings of this rank's node."""
    adapters, gpus = list(_adapters(sys)), [driver.pci_address(ordinal) for ordinal in range(driver.count())]
    rails = min(map(place.nodes.count, range(place.node_count)))
    up = [each.name for each in sorted(sys.glob("class/net/*")) if _text(each / "operstate") in ("up", "unknown")]
    return {
        "host": socket.gethostname(),
        "ranks": list(place.local_ranks),
        "adapters": adapters,
        "interfaces": [name for name in up if name != "lo"],
        "rails": assigned(rails, gpus, adapters, sys),
        "settings": {name: value for name in _SETTINGS if (value := settings.foreign(name)) is not None},
    }


def _adapters(sys: Path) -> Iterator[Facts]:
    """Yield the InfiniBand and RoCE adapters that NCCL may use."""
    for folder in sorted(sys.glob("class/infiniband/*")):
        ports = sorted(folder.glob("ports/*"))
        active = any("ACTIVE" in _text(port / "state") for port in ports)
        yield {
            "name": folder.name,
            "active": active,
            "rate": _text(ports[0] / "rate") if ports else "",
            "interfaces": sorted(each.name for each in folder.glob("device/net/*")),
            "usable": active and is_named(folder.name, settings.foreign("NCCL_IB_HCA") or ""),
        }


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def is_named(adapter: str, chosen: str) -> bool:
    """Return whether NCCL_IB_HCA lets NCCL use an adapter.

    Examples
    --------
    >>> is_named("mlx5_1", "mlx5"), is_named("mlx5_1", "=mlx5_0:1,mlx5_1:1")
    (True, True)
    >>> is_named("mlx5_1", "^mlx5_1")
    False
    """
    excludes, chosen = chosen.startswith("^"), chosen.removeprefix("^")
    exactly, chosen = chosen.startswith("="), chosen.removeprefix("=")
    names = [each.partition(":")[0] for each in chosen.split(",") if each]
    found = not names or any(adapter == name if exactly else adapter.startswith(name) for name in names)
    return found != excludes if names else True


def assigned(rails: int, gpus: Sequence[str], adapters: Sequence[Facts], sys: Path = SYS) -> list[str]:
    """Return the name of each rail's adapter; none if there are no adapters.

    It is the adapter nearest to the rail's GPU. If several are equally near, it is the one with the fewest rails.
    """
    usable = [each["name"] for each in adapters if each["usable"]]
    chosen: list[str] = []
    if not usable or settings.foreign("NCCL_IB_DISABLE") == "1":
        return chosen
    places = {name: _bus(sys / "class/infiniband" / name / "device") for name in usable}
    for rail in range(rails):
        gpu = _bus(sys / "bus/pci/devices" / gpus[rail % len(gpus)]) if gpus else set()
        common = {name: len(gpu & place) for name, place in places.items()}
        nearest = [name for name in usable if common[name] == max(common.values())]
        chosen.append(min(nearest, key=chosen.count))
    return chosen


def _bus(device: Path) -> set[Path]:
    """Return a device and all bridges between it and the root of the PCI bus."""
    return {device.resolve(), *device.resolve().parents} if device.exists() else set()


def lines(nodes: Sequence[Facts]) -> Iterator[tuple[str, str]]:
    """Yield name and line of each node, if there are several."""
    for number, node in enumerate(nodes if len(nodes) > 1 else ()):
        names = [f"{each['name']}{'' if each['active'] else ' (down)'} {each['rate']}" for each in node["adapters"]]
        network = ", ".join(" ".join(name.split()) for name in names) or ", ".join(node["interfaces"]) or "no interface"
        rails = "; ".join(f"rail {rail}: {name}" for rail, name in enumerate(node["rails"]))
        chosen = ", ".join(f"{name}={value}" for name, value in node["settings"].items())
        text = f"{node['host']}, ranks {_ranks(node['ranks'])}; {network}"
        yield f"Node {number}", "; ".join(part for part in (text, rails, chosen) if part)


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in short form: 0-7, or 0, 2, 4.

    Examples
    --------
    >>> _ranks([0, 1, 2]), _ranks([0, 2, 4]), _ranks([3])
    ('0-2', '0, 2, 4', '3')
    """
    first, last = ranks[0], ranks[-1]
    return f"{first}-{last}" if last - first == len(ranks) - 1 > 0 else ", ".join(map(str, ranks))


def shared(nodes: Sequence[Facts]) -> Iterator[str]:
    """Yield a warning for each network interface that several rails of a node share.

    A rail joins the ranks with the same local index, one of each node. On a single node, yield nothing.
    """
    for node in nodes if len(nodes) > 1 else ():
        for name in dict.fromkeys(node["rails"]):
            rails = [str(rail) for rail, each in enumerate(node["rails"]) if each == name]
            if len(rails) > 1:
                yield (
                    f"On {node['host']} rails {', '.join(rails)} share the interface {name}, and its bandwidth: run as "
                    "many ranks a node as it has interfaces, or see whether NCCL_IB_HCA leaves some out"
                )
