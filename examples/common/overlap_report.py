"""Show times of programs with overlap: a line for each size, a picture, a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.program import figure, sign
from pyncclx.tools.bench import environment


class Times(NamedTuple):
    """Microseconds of work, of communication, of both in turn, and of both at once.

    `link` is the time of the bytes at the nominal speed of the links, see `link_us`.
    """

    work: float
    communication: float
    serial: float
    overlapped: float
    link: float

    @property
    def bound(self) -> float:
        """Return a lower bound for the time with overlap."""
        return max(self.work, self.link)

    @property
    def share(self) -> float:
        """Return the share of communication in `serial`."""
        return 1 - self.work / self.serial

    @property
    def hidden(self) -> float:
        """Return the share of the communication's time that overlap hides."""
        return (self.serial - self.overlapped) / (self.serial - self.work)

    def line(self) -> str:
        """Return the line to print."""
        return (
            f"{self.work:7.1f} µs + {self.communication:6.1f} = {self.serial:7.1f} serial, {self.overlapped:7.1f} "
            f"overlapped, {self.serial / self.overlapped:.2f}x; communication {self.share:.0%}, "
            f"{self.hidden:.0%} of it hidden"
        )

    def row(self) -> dict[str, float]:
        """Return the row to write."""
        times = {f"{name}_us": getattr(self, name) for name in (*self._fields, "bound")}
        return {**times, "communication_share": self.share, "hidden_share": self.hidden}


def link_us(comm: Any, nbytes: float) -> float:
    """Return the microseconds of bytes on a link; 0 if unknown. Collective."""
    speed = environment.wire(environment.of(comm))
    return nbytes / speed / 1e3 if speed else 0.0


def panels_of(count: int) -> tuple[Any, Sequence[Any]]:
    """Return a figure with `count` panels, in one or two rows, and room for a legend."""
    columns = max(2, -(-count // 2))
    drawing, panels = figure(columns, -(-count // columns))
    for unused in panels.flat[count:]:
        unused.set_visible(False)
    return drawing, panels.flat[:count]


def draw_panel(axes: Any, title: str, sizes: Sequence[float], times: Sequence[Times], names: tuple[str, str]) -> None:
    """Draw times over sizes; `names` are those of the work and of the communication."""
    styles = {**dict(zip(names, ("k:", "k-."), strict=True)), "one after the other": "o-", "overlapped": "o-"}
    for (name, style), each in zip(styles.items(), zip(*times, strict=True), strict=False):
        axes.loglog(sizes, each, style, base=2, label=name)
    bound = [each.bound for each in times]
    axes.fill_between(sizes, min(bound) / 2, bound, color="0.85", label=f"bound: {names[0]}, or links at full speed")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(title=title, ylabel="µs")


def draw(path: Path, comm: Any, points: dict[str, dict[int, Times]]) -> None:
    """Draw the times over the tokens, for each kind of step and hidden size."""
    drawing, panels = panels_of(len(points))
    for panel, (title, times) in zip(panels, points.items(), strict=True):
        draw_panel(panel, title, [*times], [*times.values()], ("product", "collective"))
        panel.set_xlabel("tokens")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    sign(drawing, comm)
    drawing.savefig(path, dpi=100)


def write_json(path: Path | None, comm: Any, rows: list[dict[str, Any]]) -> None:
    """Write the file of ``--json``, if given. Collective."""
    about = environment.of(comm)
    if comm.rank == 0:
        environment.write_json(path, about, {"results": rows})


def warn_if_emulated(comm: Any) -> None:
    """On the host device, print a warning that the times mean nothing."""
    if comm.rank == 0 and comm.device == "host":
        print("The CPU emulated the kernels: these times mean nothing.")


def add_outputs(parser: Any, picture: str) -> None:
    """Add the flags for output files."""
    parser.add_argument("--output", type=Path, default=Path(picture), metavar="FILE", help="picture")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, with device and versions")
