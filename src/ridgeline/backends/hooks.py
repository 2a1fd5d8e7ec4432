"""Detection of forward hooks on the modules of a model, because a replayed step would not call them."""

from torch import nn
from torch.nn.modules import module as every_module


class Hooks:
    """The PyTorch forward hooks and forward pre-hooks on the modules of a model, or on all modules of the process."""

    def __init__(self, model: nn.Module) -> None:
        # PyTorch's hook dictionaries, which stay the same objects: a step only checks whether one is not empty.
        self._kept = [every_module._global_forward_pre_hooks, every_module._global_forward_hooks]
        for part in model.modules():
            self._kept += [part._forward_pre_hooks, part._forward_hooks]

    @property
    def there(self) -> bool:
        """Whether any module currently has a forward hook or forward pre-hook."""
        return any(self._kept)
