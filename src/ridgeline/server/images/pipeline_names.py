"""The names by which requests select the pipelines of a server."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.server.errors import invalid
from ridgeline.server.routes.served_model import none_of_these


@dataclass(frozen=True, slots=True)
class PipelineNames:
    """The names by which requests select the pipelines of a server."""

    own: Mapping[str, str]
    """The pipeline's own name, by each name that requests may use."""
    created: int = field(default_factory=lambda: int(time.time()))
    """The time at which the server began, in Unix seconds."""
    others: Mapping[str, str] = field(default_factory=dict)
    """The error text for image requests to models that generate no images, by their names."""

    def find(self, requested: str) -> str:
        """Return the pipeline's own name for the name in a request.

        Raises:
            ApiError: If the name is unknown (404), belongs to another kind of model (400), or is missing while there
                are several pipelines (400).
        """
        if requested in self.own:
            return self.own[requested]
        if not requested and len(set(self.own.values())) == 1:
            return next(iter(self.own.values()))
        if not requested:
            message = f"model: this server has {', '.join(self.own)}: give one of them"
            raise invalid(message, "model", code="missing_field")
        raise none_of_these(requested, self.own, self.others)

    def response_name(self, own: str) -> str:
        """Return the name by which responses call a pipeline: the first of the names that requests may use."""
        return next(name for name, each in self.own.items() if each == own)
