"""Tables in the formats of nccl-tests and of the OSU benchmarks.

The format of nccl-tests is extended by two columns for each form of a peer. OSU's format has the size of one rank's
message, and the average latency over the ranks.
"""

from __future__ import annotations

from .cases import FORMS, Case, Options
from .environment import HOST, Row, ranks
from .peers import Peer

_WHAT = f"#{'size':>11} {'count':>12} {'type':>9} {'redop':>6} {'root':>5}"
_FORM = f" {'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>7}"
_FORM_UNITS = f" {'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>7}"
_PEER = f" {'time':>9} {'ratio':>6}"


def header(kind: type[Case], about: Row, peers: dict[str, Peer], options: Options) -> str:
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


def notes(about: Row, peers: dict[str, Peer]) -> list[str]:
    """Return the lines before any table: peers, settings, warnings."""
    lines = [f"# {name}: {peer.about}" + ("" if peer.capturable else ", eager") for name, peer in peers.items()]
    if any("NCCL" in peer.about for peer in peers.values()):
        lines.append(f"# NCCL_NVLS_ENABLE: {about['NCCL_NVLS_ENABLE']}")
    if about["buffers"] != "ordinary":
        lines.append(f"# buffers: {about['buffers']}")
    if about["device"] == HOST:
        lines.append("# on the host device, which runs GPU kernels on CPU threads: its times mean nothing")
    return lines


def line(row: Row, scale: int, peers: dict[str, Peer]) -> str:
    """Return the line of one size."""
    text = f"{row['nbytes']:>12} {row['count']:>12} {row['datatype']:>9} {row['redop']:>6} {row['root']:>5}"
    text += "".join(_form(row, row[form]) for form in FORMS)
    return text + "".join(_peer(row[form], row["peers"][name][form]) for name in peers for form in FORMS)


def bandwidth(row: Row, cell: Row) -> float:
    """Return the GB/s that nccl-tests calls algbw."""
    return float(row["nbytes"] / cell["time_us"] / 1e3)


def _form(row: Row, cell: Row | None) -> str:
    if cell is None:
        return f" {'n/a':>9} {'n/a':>7} {'n/a':>7} {'n/a':>7}"
    speed = bandwidth(row, cell)
    wrong = "n/a" if cell["wrong"] is None else cell["wrong"]
    return f" {cell['time_us']:>9.2f} {speed:>7.2f} {speed * row['bus_factor']:>7.2f} {wrong:>7}"


def _peer(ours: Row | None, theirs: Row | None) -> str:
    if ours is None or theirs is None:
        return f" {'n/a':>9} {'n/a':>6}"
    mark = "!" if theirs["wrong"] else ""  # wrong results make the ratio meaningless
    return f" {theirs['time_us']:>9.2f} {mark + format(theirs['time_us'] / ours['time_us'], '.2f'):>6}"


def footer(rows: list[Row], peers: dict[str, Peer]) -> str:
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


# ---- OSU's format ---------------------------------------------------------------------------------------------------


def osu_header(kind: type[Case], about: Row, peers: dict[str, Peer], options: Options) -> str:
    """Return the lines before the table and the titles of the columns."""
    lines = [f"\n# pyncclx {kind.method} Latency Test, {ranks(about)}, {about['mode']}"]
    lines += notes(about, peers)
    lines.append(f"# Datatype: {options.datatype}." + (f" Operator: {options.op}." if kind.reduces else ""))
    return "\n".join([*lines, f"{'# Size':<10}{'Avg Latency(us)':>18}" + "".join(f"{name:>18}" for name in peers)])


def osu_line(row: Row, scale: int, peers: dict[str, Peer]) -> str:
    """Return the line of one size.

    A peer's time is that of the same form, or in place if the peer has no other form.
    """
    form = "out_of_place" if row["out_of_place"] else "in_place"
    text = f"{row['nbytes'] // scale:<10}{row[form]['average_us']:>18.2f}"
    for name in peers:
        cell = row["peers"][name][form] or row["peers"][name]["in_place"]
        text += f"{cell['average_us']:>18.2f}" if cell else f"{'n/a':>18}"
    return text


def osu_footer(rows: list[Row], peers: dict[str, Peer]) -> str:
    """Return the number of wrong results, or nothing: OSU's tables have no footer."""
    wrong = sum(row[form]["wrong"] or 0 for row in rows for form in FORMS if row[form])
    return f"# Wrong elements: {wrong}" if wrong else ""


# The functions of header, line and footer.
NCCL_TESTS, OSU = (header, line, footer), (osu_header, osu_line, osu_footer)
