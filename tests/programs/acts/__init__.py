"""What the acts of programs do on one rank, by subject."""

from . import collectives, errors, matching, messages, objects, others, persistent, wild, windows  # noqa: F401  their classes are what a listing names
