"""Utilities for every package: the machine, files, untrusted input, process messages, times, documents, the version."""
