"""Names: what requests may call the pipelines of a server."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.server.errors import invalid
from ridgeline.server.routes.served_model import none_of_these


@dataclass(frozen=True, slots=True)
class PipelineNames:
    """What requests may call the pipelines. own: the pipeline's own name, by each name that it goes by. created: when
    the server began, in Unix seconds. others: by the name of a model that draws nothing, what is said to whoever asks
    it for a picture.
    """

    own: Mapping[str, str]
    created: int = field(default_factory=lambda: int(time.time()))
    others: Mapping[str, str] = field(default_factory=dict)

    def find(self, asked: str) -> str:
        """The pipeline's own name. Raises ApiError: 404 for a name that nothing has, 400 for that of a model of another
        sort, and for none among several.
        """
        if asked in self.own:
            return self.own[asked]
        if not asked and len(set(self.own.values())) == 1:
            return next(iter(self.own.values()))
        if not asked:
            said = f"model: this server has {', '.join(self.own)}; say which"
            raise invalid(said, "model", code="missing_field")
        raise none_of_these(asked, self.own, self.others)

    def said(self, own: str) -> str:
        """What answers call a pipeline: its first name."""
        return next(name for name, each in self.own.items() if each == own)
