"""The model families, one file each; none imports another. `models/registry.py` lists them."""
