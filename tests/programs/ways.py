"""The ways in which each program is performed. The results of all must be those of the first."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Way:
    """How a job is started."""

    start: str  # plain, communicator, runner
    layout: str | None = None  # the pretend node of each rank
    variables: dict[str, str] = field(default_factory=dict)


WAYS = {
    "plain": Way("plain"),
    "communicator": Way("communicator"),
    "runner": Way("runner"),
    "nodes": Way("communicator", "abab"),
    "nodes runner": Way("runner", "abbc"),
    "hostile": Way("communicator", None, {"PYNCCLX_HOSTILE": "1", "PYNCCLX_SEED": "1"}),
}
