"""The parts of the benchmark that need no second rank: element types, tables, NCCL's errors, the picture's lines."""

import argparse
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from pyncclx.tools.bench import beside, environment, plot, report, sweep
from pyncclx.tools.bench.cases import CASES, Options
from pyncclx.tools.bench.cases.case import FLOATS, INTEGERS, Elements
from pyncclx.tools.bench.peers import nccl
from pyncclx.tools.cli import parse


def cell(time: float, wrong: int | None = 0) -> dict[str, object]:
    return {"time_us": time, "average_us": time - 1, "least_us": time - 2, "wrong": wrong}


ROW = {
    "operation": "allreduce",
    "nbytes": 8_000_000,
    "count": 2_000_000,
    "datatype": "float32",
    "redop": "sum",
    "root": -1,
    "bus_factor": 1.5,
    "out_of_place": cell(100.0),
    "in_place": cell(80.0, 3),
    "peers": {
        "nccl": {"out_of_place": cell(150.0), "in_place": cell(40.0, 7)},
        "torch": {"out_of_place": None, "in_place": cell(160.0)},
    },
}
PEERS = {"nccl": SimpleNamespace(about="NCCL 2.28.9", capturable=True)}
PEERS["torch"] = SimpleNamespace(about="PyTorch 2.11", capturable=True)
ABOUT = {"ranks": 4, "device": "NVIDIA H200", "mode": "graph", "buffers": "windows", "NCCL_NVLS_ENABLE": "0"}


# ---- element types -------------------------------------------------------------------------------------


def test_bfloat16_is_rounded_as_everywhere():
    values = np.random.default_rng(1).normal(size=5000).astype("f4")
    values[:4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0, 3e38  # two ties, one sign, one that is not infinite
    elements = Elements("bf16")
    stored = elements.encode(values)
    assert np.array_equal(stored.view(ml_dtypes.bfloat16), values.astype(ml_dtypes.bfloat16))
    assert np.array_equal(elements.decode(stored), values.astype(ml_dtypes.bfloat16).astype("f4"))


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_moved_elements_say_where_they_come_from(name):
    elements = Elements(name)
    made = [elements.to_move(np, rank, 5, 300) for rank in range(4)]
    assert made[0].dtype == elements.storage
    assert np.array_equal(made[1].view(elements.bits)[10:], elements.to_move(np, 1, 15, 290).view(elements.bits))
    for other in (*made[1:], elements.to_move(np, 0, 6, 300)):
        same = (made[0].view(elements.bits) == other.view(elements.bits)).mean()
        assert same < 0.1


@pytest.mark.parametrize("name", FLOATS)
def test_sums_of_floats_depend_on_the_order(name):
    elements = Elements(name)
    parts = [elements.to_reduce(np, rank, 0, 1000) for rank in range(4)]
    forward, backward = (elements.fold(np, "sum", order) for order in (parts, parts[::-1]))
    wide = sum(elements.decode(part).astype("f8") for part in parts)
    error = abs(elements.decode(forward) - wide) / wide
    assert error.max() <= elements.precision * 4
    if name in ("float32", "float64"):
        assert (forward != backward).any()


def test_halves_are_added_in_single_precision():
    elements = Elements("half")
    parts = [elements.to_reduce(np, rank, 0, 1000) for rank in range(8)]
    expected = sum((part.astype("f4") for part in parts[1:]), parts[0].astype("f4")).astype("f2")
    assert np.array_equal(elements.fold(np, "sum", parts), expected)


@pytest.mark.parametrize(("op", "expected"), [("sum", 12), ("prod", 48), ("min", 2), ("max", 6), ("avg", 4)])
def test_operators(op, expected):
    assert Elements("double").fold(np, op, [np.full(3, value, "f8") for value in (2, 4, 6)]).tolist() == [expected] * 3


# ---- sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"stepfactor": 4}, [8, 32, 128]),
        ({"stepbytes": "1K", "maxbytes": "2100"}, [8, 1032, 2056]),
        ({"minbytes": "1G", "maxbytes": "1GB"}, [1 << 30]),
        ({"minbytes": "0", "maxbytes": "8", "stepbytes": "4"}, [0, 4, 8]),
    ],
)
def test_sizes(words, expected):
    given = {"minbytes": "8", "maxbytes": "128", "stepfactor": 2, "stepbytes": None} | words
    assert sweep.sizes_of(argparse.Namespace(**given)) == expected


# ---- tables --------------------------------------------------------------------------------------------


def test_a_row_of_the_table():
    words = report.line(ROW, 1, PEERS).split()
    assert words[:5] == ["8000000", "2000000", "float32", "sum", "-1"]
    assert words[5:13] == ["100.00", "80.00", "120.00", "0", "80.00", "100.00", "150.00", "3"]
    assert words[13:] == ["150.00", "1.50", "40.00", "!0.50", "n/a", "n/a", "160.00", "2.00"]


def test_columns_are_below_their_titles():
    *_, forms, titles, units = report.header(CASES["allreduce"], ABOUT, PEERS, Options()).splitlines()
    lengths = {len(forms), len(titles), len(units), len(report.line(ROW, 1, PEERS))}
    assert len(lengths) == 1


def test_the_header_names_what_matters():
    text = report.header(CASES["sendrecv"], ABOUT, PEERS, Options())
    for wanted in ("NCCL 2.28.9", "NCCL_NVLS_ENABLE: 0", "buffers: windows", "4 ranks", "NVIDIA H200", "eager"):
        assert wanted in text
    assert "graph" in report.header(CASES["allreduce"], ABOUT, PEERS, Options())
    assert "times mean nothing" in report.header(
        CASES["allreduce"], {**ABOUT, "device": environment.HOST}, {}, Options()
    )


def test_the_end_of_the_table():
    text = report.footer([ROW], PEERS)
    assert "# Wrong elements     : 3 FAILED" in text
    assert "# Wrong elements of nccl: 7" in text
    assert "torch" not in text
    assert "# Avg bus bandwidth  : 135.0000" in text
    assert "not checked" in report.footer([{**ROW, "out_of_place": cell(1, None), "in_place": None}], {})


def test_osu_rows():
    assert report.osu_line(ROW, 4, PEERS).split() == ["2000000", "99.00", "149.00", "159.00"]
    assert "# Size" in report.osu_header(CASES["allreduce"], ABOUT, PEERS, Options())


# ---- the picture ---------------------------------------------------------------------------------------


def test_lines_of_the_picture():
    """Size, time, bandwidth, and time in ours of the same form."""
    bcast = {**ROW, "out_of_place": None, "peers": {"nccl": {"out_of_place": None, "in_place": None}}}
    found = plot.lines([ROW, bcast])
    assert found["pyncclx"] == [(8_000_000, 100.0, 120.0, 1.0), (8_000_000, 80.0, 150.0, 1.0)]
    assert found["nccl"] == [(8_000_000, 150.0, 80.0, 1.5)]
    assert found["torch"] == [(8_000_000, 160.0, 75.0, 2.0)]


def test_beside(tmp_path, monkeypatch):
    """The slowdown is that of the product; the bandwidth that of the operation alone."""
    pytest.importorskip("matplotlib")
    row = {"operation": "allgather", "by": "kernel", "nbytes": 8_000_000, "bus_factor": 0.75, "alone_us": 100.0}
    row |= {"beside_us": 120.0, "product_alone_us": 1000.0, "product_us": 1250.0}
    assert beside.line(row).split() == ["allgather", "kernel", "100.0", "60", "120.0", "1250.0", "25.0", "%"]
    beside.draw(
        tmp_path / "new" / "beside.png", {"ranks": 4, "device": "GPU", "date": "today"}, [row, row | {"by": "x"}]
    )
    assert (tmp_path / "new" / "beside.png").stat().st_size > 1000
    monkeypatch.setenv("PYNCCLX_DEVICE", "host")
    for words, problem in ((["nix"], "bench-beside nix: name some of"), ([], "needs GPUs")):
        with pytest.raises(SystemExit, match=problem):
            beside.run(parse(["bench-beside", *words]))


@pytest.mark.parametrize(
    ("device", "expected"),
    [("NVIDIA H200", 450.0), ("NVIDIA H100 80GB HBM3", 450.0), ("NVIDIA H100 PCIe", None), ("NVIDIA A100", None)],
)
def test_the_wire(device, expected):
    assert environment.wire({"device": device}) == expected
    assert environment.wire({"device": device, "ranks_of_a_device": 2}) is None
    assert environment.wire({"device": device, "nodes": 1}) == expected
    assert environment.wire({"device": device, "nodes": 2}) is None


def test_ranks_that_share_a_gpu_are_said_to():
    assert environment.ranks(ABOUT) == environment.ranks({**ABOUT, "ranks_of_a_device": 1}) == "4 ranks, NVIDIA H200"
    assert environment.ranks({**ABOUT, "ranks_of_a_device": 2}) == "4 ranks, 2 on each NVIDIA H200"


def test_nodes_are_said():
    over_nodes = {**ABOUT, "nodes": 2, "engine": "nccl"}
    assert environment.ranks(over_nodes) == "4 ranks on 2 nodes (engine: nccl), NVIDIA H200"
    assert environment.ranks({**ABOUT, "nodes": 1, "engine": None}) == "4 ranks, NVIDIA H200"


# ---- NCCL's errors -------------------------------------------------------------------------------------


def status_of_everything(status: int) -> SimpleNamespace:
    """A library all of whose functions but one return the same status."""
    names = (*nccl._PROTOTYPES, *nccl._WINDOW_PROTOTYPES)
    functions = {name: (lambda *arguments: status) for name in names}
    functions["ncclGetVersion"] = lambda out: 0
    return SimpleNamespace(**functions, ncclGetErrorString=lambda status: b"unhandled cuda error")


def test_errors_are_exceptions():
    library = nccl.Library(status_of_everything(1))
    with pytest.raises(nccl.NcclError, match=r"^ncclGroupEnd: unhandled cuda error \(status 1\)"):
        library.ncclGroupEnd()


def test_what_a_version_has_not_is_said():
    library = nccl.Library(status_of_everything(0))
    with pytest.raises(nccl.NcclError, match=r"has no ncclMemAlloc$"):
        library.ncclMemAlloc(None, 8)
