"""The message while a model is traced from its class of transformers, which takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager

from ridgeline.cli.console import status
from ridgeline.core.models import Fields
from ridgeline.core.models.registry import has_family


@contextmanager
def class_status(fields: Fields) -> Iterator[None]:
    """Show on a terminal that a model is traced from its class, while the context is open.

    Nothing is shown of a model that a family here builds, which takes no time.
    """
    if has_family(fields):
        yield
        return
    with status(f"tracing {fields.architecture or 'the model'} from its class in transformers"):
        yield
