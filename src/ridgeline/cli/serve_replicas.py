"""`ridgeline serve --replicas N` serves a model with several engines on Ray."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ridgeline.cli.flags import panel
from ridgeline.cli.replica_options import ScalingFlags, check_cores, check_count, split_memory
from ridgeline.core.checkpoint import ModelSource
from ridgeline.engine import placement
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.worker.process_handle import ProcessHandle
from ridgeline.insight.traffic.routers import router_named
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.server.lifecycle import ServedLLM

if TYPE_CHECKING:  # a server with one engine must not import these
    from ridgeline.server.replicas.ray_cluster import RayCluster, ReplicaResources
    from ridgeline.server.replicas.served_replicas import ServedReplicas

_replicas = panel("Replicas")


@dataclass(frozen=True, slots=True)
class ReplicaFlags:
    """The options for replicas: their number, location, router and autoscaling."""

    replicas: int = _replicas("The number of engines for the model, on Ray (pip install 'ridgeline[ray]').", default=1)
    ray_address: str | None = _replicas(
        "The Ray cluster to run on: auto for the one this machine belongs to, or its HOST:PORT. By default a new "
        "cluster on this machine.",
        is_eager=True,  # before --threads, which then counts the cores of the replicas' machines
    )
    router: str | None = _replicas(
        "How requests are assigned to replicas: least (the least loaded; the default), two (the less loaded of two "
        "random ones), round-robin, random, or prefix (the one that has the prompt's first page in its cache, unless "
        "it is busy)."
    )
    autoscaling: ScalingFlags = ScalingFlags()

    @property
    def given(self) -> bool:
        """Whether the server may have several replicas, or runs on a Ray cluster."""
        return self.replicas != 1 or self.ray_address is not None or self.autoscaling.scale is not None

    def scaling(self) -> Scaling | None:
        """Return the autoscaling that the options describe, or None without --scale.

        Raises:
            ValueError: If the options contradict each other.
        """
        if self.autoscaling.scale is not None and self.replicas != 1:
            raise ValueError("--scale sets the number of replicas; leave out --replicas")
        return self.autoscaling.scaling()

    def check(self, pipelines: Sequence[ModelSource]) -> None:
        """Raise ValueError for options that cannot be combined.

        Args:
            pipelines: The diffusion pipelines to serve.
        """
        check_count(self.replicas)
        self.scaling()
        router_named(self.router or "least", 0)
        if self.router is not None and most_replicas(self) == 1:
            raise ValueError("--router needs --replicas 2 or more; leave it out")
        if self.given and pipelines:
            raise ValueError(
                f"--replicas is for language models, but {pipelines[0].name} generates images; leave one of them out"
            )


def replica_resources(flags: ReplicaFlags, served: ServedLLM) -> "ReplicaResources":
    """Return the cores and GPUs that each replica occupies.

    Raises:
        ValueError: If this machine has too few of them and no cluster is given, or if --device names a single GPU.
    """
    from ridgeline.server.replicas.ray_cluster import ReplicaResources

    settings = served.settings or EngineSettings()
    place = placement.device_named(settings.device)
    if place.index is not None:
        raise ValueError(f"--device {place} names one GPU, but Ray assigns GPUs to replicas; give --device cuda")
    share = ReplicaResources((served.threads or 1) * settings.ranks, int(place.type != "cpu"))
    if flags.ray_address is None:
        check_cores(most_replicas(flags), served.threads or 1, settings.ranks)
    return share


def most_replicas(flags: ReplicaFlags) -> int:
    """Return the maximum number of replicas that may run at a time."""
    scaling = flags.scaling()
    return flags.replicas if scaling is None else scaling.most


def served_replicas(
    served: ServedLLM, flags: ReplicaFlags, cluster: "RayCluster", share: "ReplicaResources"
) -> "ServedReplicas":
    """Return the servable with several replicas on a Ray cluster.

    Args:
        served: The model as a single engine would serve it.
        flags: The replica options.
        cluster: The Ray cluster.
        share: The resources of each replica.
    """
    from ridgeline.server.replicas.ray_cluster import RayProcessHandle
    from ridgeline.server.replicas.served_replicas import ServedReplicas

    settings, scaling = served.settings or EngineSettings(), flags.scaling()
    if flags.ray_address is None and not (share.gpus or served.engine_factory):
        settings = split_memory(settings, most_replicas(flags))
    count = flags.replicas if scaling is None else scaling.least
    name = flags.router or "least"

    def where(place: ProcessHandle | None) -> str:
        assert isinstance(place, RayProcessHandle)
        return place.where

    return ServedReplicas(
        replace(served, settings=settings),
        count,
        lambda number: RayProcessHandle(cluster, number, share),
        lambda: router_named(name, 0),
        scaling,
        where,
    )
