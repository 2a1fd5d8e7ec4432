"""Functions that find the layers and final norm of any model by module types, rather than by module names."""

from torch import nn

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.norm import Norm
from ridgeline.core.ops.op import Op


def blocks(model: Model) -> list[nn.Module]:
    """Return the transformer blocks of a model, in order.

    Raises:
        ValueError: If the model has no module list with one entry for each of its layers.
    """
    count = sum(layers_of(model))
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and not isinstance(module, Op) and len(module) == count:
            return list(module)
    raise ValueError("this model has no list of layers to look into")


def layer_numbers(network: PricedModule) -> dict[str, int]:
    """Return the layer number of each op in a module list, by path: its index in the outermost such list."""
    lists = [path for path, module in network.named_modules() if isinstance(module, nn.ModuleList)]
    numbers: dict[str, int] = {}
    for path, _ in network.ops():
        outermost = next((each for each in lists if path.startswith(f"{each}.")), None)
        if outermost is not None:
            numbers[path] = int(path.removeprefix(f"{outermost}.").partition(".")[0])
    return numbers


def final_norm(model: Model) -> Norm:
    """Return the norm before the LM head, which is the model's last norm.

    Raises:
        ValueError: If the model has no norm.
    """
    for _, op in reversed(model.ops()):
        if isinstance(op, Norm):
            return op
    raise ValueError("this model has no norm before its head")
