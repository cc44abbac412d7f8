"""Modules that programs of several folders use."""
