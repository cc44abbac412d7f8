"""Receives into host arrays; the message may be that of a device array."""
