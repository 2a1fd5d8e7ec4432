"""A denoiser whose blocks torch has compiled (https://docs.pytorch.org/docs/stable/torch.compiler.html).

What is around them (embedders, samplers, guidance, the step cache) stays as it is, and so do text encoder and VAE. Our
kernels are left out within, because torch's compiler makes its own of what they do. Blocks are compiled once more for
each other size, length of a text or number of pictures side by side.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.diffusion.pipeline import Calls, Pipeline, guided_denoiser
from ridgeline.diffusion.request import Plan
from ridgeline.ops.backend import REFERENCE

_GRAPHS = 64  # that torch may keep of one block's code: a shape each, of texts and of pictures side by side


def compile_blocks(pipeline: Pipeline, plan: Plan, texts: Sequence[Tensor]) -> int:
    """Have the blocks of a pipeline's denoisers compiled for a plan, by a call of each shape that it has, which takes
    seconds to minutes. texts: what `encode` gave of the plan. Returns the number of blocks. Raises ValueError where
    there is no C++ compiler."""
    # The imports are half a second of symbolic algebra.
    from torch import _dynamo
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        # Asked before anything is compiled: a compilation that fails leaves torch's hook in the interpreter.
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ValueError(
            "--compile wants a C++ compiler, and there is none that runs; install g++, or name one in CXX"
        ) from None
    second = pipeline.second
    pairs = [(pipeline.denoiser, plan.guidance)]
    pairs += [(second.denoiser, plan.second)] if second is not None and plan.second is not None else []
    lists = [denoiser.get_submodule(name) for denoiser, _ in pairs for name in denoiser.block_lists]
    blocks = [block for each in lists for block in each.children()]
    _dynamo.config.recompile_limit = max(_GRAPHS, _dynamo.config.recompile_limit)
    for block in blocks:
        REFERENCE.bind(block)
        block.compile(dynamic=False, fullgraph=True)
    pooled = pipeline.texts.pooled(plan.request.prompt)
    for images in {len(group) for group in plan.groups}:
        for denoiser, guidance in pairs:
            predict = guided_denoiser(denoiser, guidance, texts, Calls(images, plan.batching.paired), pooled)
            with torch.inference_mode():
                predict(torch.zeros(images, *plan.geometry.latents), plan.schedule.time(0))
    return len(blocks)
