"""Derived datatypes: flattened on the host, packed and unpacked by a kernel."""
