"""What a step must cost on this hardware, and how long that takes. `price.py` sums the costs of a model's ops."""
