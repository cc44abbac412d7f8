"""Receives and probes of any tag beside messages in partitions."""

from programs.acts.wild import BEGINNINGS, PROBES, AnyTag, OpenOfAnyTag

from .common import act, sampled
from .persistent import PARTS

ANY_TAG = act(AnyTag, comm=sampled("own"), count=sampled(12, 1200), parts=PARTS, probe=sampled(*PROBES))
OPEN = act(
    OpenOfAnyTag,
    comm=sampled("own"),
    count=sampled(12, 1200),
    parts=PARTS,
    requests=sampled(1, 1, 2, 40),
    begin=sampled(*BEGINNINGS, "Irecv", "Recv_init"),
    second=sampled(False, False, True),
    length=sampled(3, 0, 36, 5000),
)
