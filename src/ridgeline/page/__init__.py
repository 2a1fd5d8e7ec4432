"""The page: what it is made of, how it becomes what a server sends or one file that opens from disk, and the prices
that it computes with. `tables.py` has a model's, `cards.py` cards and engines; `static/price.js` evaluates them.
"""
