"""The version, in a module of its own: a room that asked the package for it would import what opens the engine."""

__version__ = "0.1.0"
