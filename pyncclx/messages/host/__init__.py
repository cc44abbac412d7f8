"""Receives of host arrays that a device array's message may match."""
