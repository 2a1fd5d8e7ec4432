"""The version of the package, in its own module so that importing it does not import the engine."""

__version__ = "0.1.0"
