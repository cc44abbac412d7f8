"""Receives into host arrays, whose message may be that of a device array."""
