"""Table in nccl-tests' format, with two more columns for each form of a peer."""

from __future__ import annotations

from typing import Any

from .cases import FORMS, Case, Options
from .environment import HOST, ranks
from .peers import Peer

_WHAT = f"#{'size':>11} {'count':>12} {'type':>9} {'redop':>6} {'root':>5}"
_FORM = f" {'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>7}"
_FORM_UNITS = f" {'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>7}"
_PEER = f" {'time':>9} {'ratio':>6}"


def header(kind: type[Case], about: dict[str, Any], peers: dict[str, Peer], options: Options) -> str:
    """Return the lines before the table and the titles of the columns."""
    captured = about["mode"] == "graph" and kind.capturable
    mode = "in a replayed CUDA graph" if captured else "eager"
    lines = [f"\n# {kind.method}, {ranks(about)}, {mode}; time of the slowest rank"]
    lines += notes(about, peers)
    if peers:
        lines.append("# ratio: the peer's time over ours")
    names = [f"{name}, {form}" for name in peers for form in ("out", "in")]
    width = len(_FORM) - 1
    titles = "".join(f" {name:>{len(_PEER) - 1}}" for name in names)
    lines.append(f"#{'':{len(_WHAT) - 1}} {'out-of-place':^{width}} {'in-place':^{width}}" + titles)
    lines.append(_WHAT + 2 * _FORM + _PEER * len(names))
    units = f" {'(us)':>9} {'':>6}" * len(names)
    lines.append(f"#{'(B)':>11} {'(elements)':>12} {'':>9} {'':>6} {'':>5}" + 2 * _FORM_UNITS + units)
    return "\n".join(lines)


def notes(about: dict[str, Any], peers: dict[str, Peer]) -> list[str]:
    """Return the lines before any table: peers, settings, warnings."""
    lines = [f"# {name}: {peer.about}" + ("" if peer.capturable else ", eager") for name, peer in peers.items()]
    if any("NCCL" in peer.about for peer in peers.values()):
        lines.append(f"# NCCL_NVLS_ENABLE: {about['NCCL_NVLS_ENABLE']}")
    if about["buffers"] != "ordinary":
        lines.append(f"# buffers: {about['buffers']}")
    if about["device"] == HOST:
        lines.append("# on the host device, which runs GPU kernels on CPU threads: its times mean nothing")
    return lines


def line(row: dict[str, Any], scale: int, peers: dict[str, Peer]) -> str:
    """Return the line of one size."""
    text = f"{row['nbytes']:>12} {row['count']:>12} {row['datatype']:>9} {row['redop']:>6} {row['root']:>5}"
    text += "".join(_form(row, row[form]) for form in FORMS)
    return text + "".join(_peer(row[form], row["peers"][name][form]) for name in peers for form in FORMS)


def bandwidth(row: dict[str, Any], cell: dict[str, Any]) -> float:
    """Return the GB/s that nccl-tests calls algbw."""
    return float(row["nbytes"] / cell["time_us"] / 1e3)


def _form(row: dict[str, Any], cell: dict[str, Any] | None) -> str:
    if cell is None:
        return f" {'n/a':>9} {'n/a':>7} {'n/a':>7} {'n/a':>7}"
    speed = bandwidth(row, cell)
    wrong = "n/a" if cell["wrong"] is None else cell["wrong"]
    return f" {cell['time_us']:>9.2f} {speed:>7.2f} {speed * row['bus_factor']:>7.2f} {wrong:>7}"


def _peer(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> str:
    if ours is None or theirs is None:
        return f" {'n/a':>9} {'n/a':>6}"
    mark = "!" if theirs["wrong"] else ""  # wrong results make the ratio void
    return f" {theirs['time_us']:>9.2f} {mark + format(theirs['time_us'] / ours['time_us'], '.2f'):>6}"


def footer(rows: list[dict[str, Any]], peers: dict[str, Peer]) -> str:
    """Return the lines after the table: wrong elements, and nccl-tests' average busbw."""
    cells = [(row, row[form]) for row in rows for form in FORMS if row[form]]
    if not cells:
        return "# nothing was timed"
    wrong = sum(cell["wrong"] or 0 for _, cell in cells)
    unchecked = all(cell["wrong"] is None for _, cell in cells)
    average = sum(bandwidth(row, cell) * row["bus_factor"] for row, cell in cells) / len(cells)
    verdict = "not checked" if unchecked else f"{wrong} {'FAILED' if wrong else 'OK'}"
    lines = [f"# Wrong elements     : {verdict}"]
    for name in peers:
        theirs = [cell for row in rows for cell in row["peers"][name].values() if cell]
        if bad := sum(cell["wrong"] or 0 for cell in theirs):
            lines.append(f"# Wrong elements of {name}: {bad}; its ratios with ! compare nothing")
    lines.append(f"# Avg bus bandwidth  : {average:.4f}")
    return "\n".join(lines)
