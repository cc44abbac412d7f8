"""Intercommunicators."""

from hypothesis import strategies as st

from programs.acts.inter import COLLECTIVES, Inter

from .common import act, sampled

INTER = act(
    Inter,
    comm=sampled("base", "dup", "reversed"),
    edge=st.integers(0, 2),
    send=sampled("Isend", "Issend"),
    name=sampled(*COLLECTIVES),
    high=st.booleans(),
)
