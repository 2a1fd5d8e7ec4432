"""Keys and values of prompts that one engine computes (the producer) and another goes on with (the consumer).

`config.py` says who listens and who asks, `wire.py` what is said between the two, `identity.py` which model and which
layout of pages they must share. `producer.py` and `consumer.py` are the two ends, beside an engine's loop
(engine/worker/loop.py), `peer.py` the consumer's end of one connection, `threads.py` the threads that read and write
those; the pages themselves go through engine/kv/page_exchange.py.
"""
