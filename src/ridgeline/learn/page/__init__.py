"""The web page: its files, its delivery by a server or as a single HTML file, and the prices that it computes with.

`model_tables.py` has the tables of a model and `device_tables.py` those of devices and engines; `static/price.js`
evaluates them.
"""
