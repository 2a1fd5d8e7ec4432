"""The transfer of a prompt's KV pages from the engine that computes it (producer) to another (consumer).

`config.py` holds the settings, `wire.py` the protocol between the two, and `identity.py` the model and page layout that
they must share. `producer.py` and `consumer.py` are the two ends, next to an engine's loop (engine/worker/loop.py).
`peer.py` is the consumer's end of one connection, `threads.py` has the threads that read and write connections. The
pages themselves go through engine/kv/page_exchange.py.
"""
