"""What `info` finds out of a node's network interfaces, in a /sys that is made up."""

import pytest

import mpi_bootstrap
from pyncclx.system import driver
from pyncclx.tools.cli import networks

VARIABLES = ("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NETDEVS_POLICY", "UCX_NET_DEVICES")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Sys:
    """A /sys: two switches of the PCI bus, each with GPUs and adapters."""

    def __init__(self, root):
        self.root = root
        self.add_interface("lo", "unknown")

    def device(self, switch, address):
        folder = self.root / "devices/pci0000:00" / f"0000:00:0{switch}.0" / address
        folder.mkdir(parents=True)
        return folder

    def add_gpu(self, switch, address):
        place = self.root / "bus/pci/devices" / address
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(self.device(switch, address))

    def add_adapter(self, name, switch, address, state="4: ACTIVE"):
        port = self.root / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        device = self.device(switch, address)
        (device / "net" / f"ib{name[-1]}").mkdir(parents=True)
        (port.parents[1] / "device").symlink_to(device)

    def add_interface(self, name, state):
        folder = self.root / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")


@pytest.fixture
def sys(tmp_path, monkeypatch):
    """Four GPUs, of which two are below each of two switches, and an adapter below each."""
    made, addresses = Sys(tmp_path), [f"0000:1{gpu}:00.0" for gpu in range(4)]
    for gpu, address in enumerate(addresses):
        made.add_gpu(1 + gpu // 2, address)
    made.add_adapter("mlx5_0", 2, "0000:20:00.0")
    made.add_adapter("mlx5_1", 1, "0000:21:00.0")
    monkeypatch.setattr(driver, "count", lambda: len(addresses))
    monkeypatch.setattr(driver, "pci_address", addresses.__getitem__)
    return made


def node(sys, per_node=4):
    """The facts of the first of two nodes."""
    nodes = tuple(rank // per_node for rank in range(2 * per_node))
    return networks.of_node(mpi_bootstrap.Topology(0, len(nodes), 0, 0, per_node, "here", nodes), sys.root)


def test_each_rail_has_the_adapter_that_is_nearest_to_its_gpu(sys):
    found = node(sys)
    assert found["rails"] == ["mlx5_1", "mlx5_1", "mlx5_0", "mlx5_0"]
    assert found["ranks"] == [0, 1, 2, 3]
    assert [(each["name"], each["interfaces"]) for each in found["adapters"]] == [
        ("mlx5_0", ["ib0"]),
        ("mlx5_1", ["ib1"]),
    ]


def test_two_rails_on_one_adapter_are_a_warning(sys):
    found = node(sys)
    first, second = networks.shared([found, found | {"rails": []}])
    assert "rails 0, 1 share the interface mlx5_1" in first
    assert "rails 2, 3 share the interface mlx5_0" in second
    assert not list(networks.shared([found]))  # one node has no use for it


def test_as_many_adapters_as_rails_are_none(sys):
    sys.add_adapter("mlx5_2", 1, "0000:22:00.0")
    sys.add_adapter("mlx5_3", 2, "0000:23:00.0")
    found = node(sys)
    assert found["rails"] == ["mlx5_1", "mlx5_2", "mlx5_0", "mlx5_3"]
    assert not list(networks.shared([found, found]))


def test_adapters_that_are_down_or_left_out_are_not_used(sys, monkeypatch):
    sys.add_adapter("mlx5_2", 1, "0000:22:00.0", state="1: DOWN")
    assert set(node(sys)["rails"]) == {"mlx5_0", "mlx5_1"}
    monkeypatch.setenv("NCCL_IB_HCA", "^mlx5_1")
    found = node(sys)
    assert found["rails"] == ["mlx5_0"] * 4
    assert found["settings"] == {"NCCL_IB_HCA": "^mlx5_1"}
    (text,) = networks.shared([found, found | {"rails": []}])
    assert "rails 0, 1, 2, 3 share the interface mlx5_0" in text
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    assert node(sys)["rails"] == []


def test_without_adapters_there_are_interfaces(sys, tmp_path):
    bare = Sys(tmp_path / "bare")
    bare.add_interface("eth0", "up")
    bare.add_interface("eth1", "down")
    found = node(bare)
    assert (found["adapters"], found["rails"], found["interfaces"]) == ([], [], ["eth0"])


def test_lines(sys):
    sys.add_adapter("mlx5_2", 1, "0000:22:00.0", state="1: DOWN")
    other = node(sys) | {"ranks": [4, 6, 8]}
    (name, text), (_, second) = networks.lines([node(sys), other])
    assert name == "Node 0"
    assert "ranks 0-3; mlx5_0 400 Gb/sec (4X NDR), mlx5_1" in text
    assert "mlx5_2 (down)" in text
    assert "rail 0: mlx5_1; rail 1: mlx5_1; rail 2: mlx5_0" in text
    assert "ranks 4, 6, 8;" in second
    assert not list(networks.lines([node(sys)]))


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ("", "mlx5_0 mlx5_1 mlx5_10"),
        ("mlx5_1", "mlx5_1 mlx5_10"),
        ("=mlx5_1", "mlx5_1"),
        ("=mlx5_0:1,mlx5_1:2", "mlx5_0 mlx5_1"),
        ("^mlx5_1", "mlx5_0"),
        ("^=mlx5_1", "mlx5_0 mlx5_10"),
    ],
)
def test_adapters_that_are_named(chosen, named):
    assert [each for each in ("mlx5_0", "mlx5_1", "mlx5_10") if networks.is_named(each, chosen)] == named.split()
