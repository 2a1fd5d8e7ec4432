"""The cost model of inference: it turns FLOPs and bytes into seconds, memory and dollars on a given device.

`price.py` sums the costs of a model's ops.
"""
