"""A function that a model can call, as a request describes it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.text.tools.json_schema import resolved


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model can call."""

    name: str
    """The name of the function."""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """The JSON schema of the arguments, an object."""

    @property
    def parameter_names(self) -> Set[str]:
        """The names of the parameters that the function describes, in their order."""
        properties = resolved(self.parameters, self.parameters).get("properties")
        return properties.keys() if isinstance(properties, Mapping) else frozenset()

    def schema_of(self, parameter: str) -> Mapping[str, Any]:
        """Return the JSON schema of one parameter; {} if the function does not describe it."""
        properties = resolved(self.parameters, self.parameters).get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return schema if isinstance(schema, Mapping) else {}
