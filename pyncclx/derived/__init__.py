"""Derived datatypes: flattened on the host, packed into contiguous device memory and unpacked by a kernel."""
