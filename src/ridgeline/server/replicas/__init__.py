"""Replicas: several engines behind one server, on Ray.

`ray_cluster.py` imports Ray: it finds or starts a cluster and places actors. `ray_actor.py` runs in an actor: an engine
that communicates like any engine's process (engine/worker), over its own socket. `engine_fleet.py` routes requests to
engines, and retries requests that were lost before their first token. `replica_supervisor.py` starts, ends and scales
engines. `replica_observability.py` exports metrics of each and of all. `served_replicas.py` combines these parts.
`ray_batch.py` runs a batch file on Ray Data, without a server.
"""
