"""Utilities for every package: the machine, files, untrusted input, messages between processes, times and documents."""
