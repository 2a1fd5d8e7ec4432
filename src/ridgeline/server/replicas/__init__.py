"""Replicas: several engines behind one front, on Ray.

`ray_cluster.py` is where Ray is imported: it finds or starts a cluster and places actors. `ray_actor.py` is what runs
in one: an engine that talks as any engine's process does (engine/worker), over a socket of its own. `engine_fleet.py`
deals requests among engines and has those again that were lost before they gave a token; `replica_supervisor.py`
starts, ends and counts engines. `replica_observability.py` tells of each and of all, `served_replicas.py` puts it
together. `ray_batch.py` has a file of requests answered on Ray Data, without a front.
"""
