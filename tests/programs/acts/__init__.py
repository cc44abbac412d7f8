"""What the acts of programs do on one rank, by subject."""

from . import collectives, matching, messages, objects, persistent  # noqa: F401  their classes are what a listing names
