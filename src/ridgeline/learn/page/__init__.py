"""The page: what it is made of, how it becomes what a server sends or one file that opens from disk, and the prices
that it computes with. `model_tables.py` has a model's, `device_tables.py` cards and engines; `static/price.js`
evaluates them.
"""
