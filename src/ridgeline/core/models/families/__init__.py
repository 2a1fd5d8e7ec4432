"""The model families, one file each; none imports another. `core/models/registry.py` lists them."""
