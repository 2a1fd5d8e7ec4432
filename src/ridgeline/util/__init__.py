"""Utilities for every package: the machine, files, messages between processes, times, and documents."""
