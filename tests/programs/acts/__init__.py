"""What the acts of programs do on one rank, by subject."""

from . import (  # noqa: F401  their classes are what a listing names
    again,
    collectives,
    errors,
    inter,
    matching,
    messages,
    neighbors,
    objects,
    others,
    persistent,
    wild,
    windows,
)
