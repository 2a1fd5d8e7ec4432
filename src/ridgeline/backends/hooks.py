"""Hooks on a model's parts, which would see nothing of a step that is replayed."""

from torch import nn
from torch.nn.modules import module as every_module


class Hooks:
    """The hooks on a model's parts or on all modules."""

    def __init__(self, model: nn.Module) -> None:
        # Where torch keeps hooks: the same dictionaries as they come and go, so that a step only looks for a full one.
        self._kept = [every_module._global_forward_pre_hooks, every_module._global_forward_hooks]
        for part in model.modules():
            self._kept += [part._forward_pre_hooks, part._forward_hooks]

    @property
    def there(self) -> bool:
        """Whether any module has a hook now."""
        return any(self._kept)
