"""The examples of overlap, small, on three ranks: they pass their own checks, draw and write."""

import importlib
import json
from pathlib import Path

import pytest

import launch

pytest.importorskip("matplotlib")
pytest.importorskip("ml_dtypes")
pytest.importorskip("tqdm")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ARGUMENTS = {
    "tensor_parallel/tensor_parallel.py": ["--hidden", "48", "--tokens", "24", "48"],
    "moe/moe_overlap.py": ["--tokens", "51", "60", "--k", "3"],
    "solvers/jacobi_persistent.py": ["--size", "9", "12", "--steps", "4"],
    "weights/weight_transfer.py": ["--hidden", "13", "16", "--versions", "3"],
}
EACH = {
    "tensor_parallel/tensor_parallel.py": [(step, 48, tokens) for step in ("gather", "scatter") for tokens in (24, 48)],
    "moe/moe_overlap.py": [(32, 16, 51), (32, 16, 60)],
    "solvers/jacobi_persistent.py": [(9,), (12,)],
    "weights/weight_transfer.py": [(13,), (16,)],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_passes(name: str, tmp_path: Path) -> None:
    picture, table = tmp_path / "picture.png", tmp_path / "table.json"
    outputs = "--output", str(picture), "--json", str(table)
    settings = {"PYNCCLX_HEAP": "512K", "PYNCCLX_TIMEOUT": "60"}
    done = launch.job(3, str(EXAMPLES / name), *ARGUMENTS[name], *outputs, seconds=120, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: PASSED" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = json.loads(table.read_text())
    assert written["environment"]["ranks"] == 3
    keys = "step", "hidden", "inner", "tokens", "size"
    assert [tuple(row[key] for key in keys if key in row) for row in written["results"]] == EACH[name]


def test_what_overlap_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    report = importlib.import_module("common.overlap_report")
    row = report.Times(60.0, 90.0, 120.0, 75.0, 50.0).row()
    assert (row["bound_us"], row["communication_share"], row["hidden_share"]) == (60.0, 0.5, 0.75)
    assert report.Times(60.0, 90.0, 120.0, 75.0, 70.0).bound == 70.0


@pytest.mark.parametrize(("overlapped", "best"), [((90.0, 80.0), 2), ((130.0, 120.0), None)])
def test_multiprocessors_are_divided_where_that_is_faster(
    overlapped: tuple[float, float], best: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ways the faster one is measured again, with what it has alone; where both are slower, there is none."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(EXAMPLES / "moe"))
    report = importlib.import_module("moe_overlap_report")
    found = {(blocks, "overlapped"): time for blocks, time in zip((1, 2), overlapped, strict=True)}
    found |= {(None, "serial"): 120.0, (None, "products"): 60.0, (None, "communication"): 50.0}
    found |= {(2, "products"): 70.0, (2, "communication"): 75.0}
    monkeypatch.setattr(report, "_us", lambda _layers, blocks, way: found[blocks, way])
    monkeypatch.setattr(report, "_link_us", lambda _layers: 0.0)
    divided = report.measure(None, (1, 2))
    assert divided.blocks == best
    assert (divided.times.overlapped, divided.bound) == ((80.0, 75.0) if best else (120.0, 60.0))
