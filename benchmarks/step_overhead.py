"""What a step of a picture takes beside its denoiser: the sampler, guidance, and the generator that gives way.

    python benchmarks/step_overhead.py [--size 1024] [--steps 50]

The denoiser here gives what it is shown, in no time, so that all that is left is the pipeline's own. Latents are those
of a picture of SIZE x SIZE pixels, 8 x 8 a latent, 16 channels. The median of five requests, one thread.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.denoiser import Denoiser, Texts
from ridgeline.core.ops.work import RowAxis, Work
from ridgeline.media.diffusion.batching import Batching
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.geometry import PipelineLayout, Size
from ridgeline.media.diffusion.guidance import Convention, make_guidance
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.samplers import dpmpp_2m, euler, unipc
from ridgeline.media.diffusion.scheduler_config import DiffusionScheduler
from ridgeline.media.diffusion.schedules import dpmpp_flow, euler_flow, unipc_flow
from ridgeline.media.diffusion.timestep_call import flux_sigmas

TRAIN_STEPS = 1000
SCHEDULERS = {
    "euler": DiffusionScheduler(euler, TRAIN_STEPS, lambda steps, _: euler_flow(flux_sigmas(steps), 3.0, TRAIN_STEPS)),
    "dpmpp_2m": DiffusionScheduler(dpmpp_2m, TRAIN_STEPS, lambda steps, _: dpmpp_flow(steps, 3.0, TRAIN_STEPS)),
    "unipc": DiffusionScheduler(unipc, TRAIN_STEPS, lambda steps, _: unipc_flow(steps, 3.0, TRAIN_STEPS)),
}
REQUESTS = 5


class Nothing(Denoiser):
    """Gives what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)  # says which device it is on

    def forward(self, latents_PCHW: Tensor, t: float | Sequence[float], texts: Texts, **_: object) -> Tensor:
        """As Denoiser.forward."""
        return latents_PCHW

    def work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        """Asked by nobody here."""
        raise NotImplementedError

    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        raise NotImplementedError


def seconds(pipeline: Pipeline, scheduler: DiffusionScheduler, plan: DiffusionPlan) -> float:
    """Of a step."""
    pipeline.scheduler = scheduler
    texts = [torch.zeros(1, 1)] * len(plan.token_ids)
    took = []
    for _ in range(REQUESTS):
        start = time.perf_counter()
        for _ in pipeline.denoise(plan, texts):
            pass
        took.append((time.perf_counter() - start) / plan.steps)
    return statistics.median(took)


def main() -> None:
    """Print a line a sampler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    size = Size(asked.size, asked.size)
    pipeline = load_pipeline("digits")
    pipeline.denoiser = Nothing()
    geometry = PipelineLayout(16, (size,)).geometry(size)
    print(f"a step of a picture of {size} pixels, latents {list(geometry.latents)}, without its denoiser:")
    for name, scheduler in SCHEDULERS.items():
        found = []
        for scale in (1.0, 4.0):
            guidance = make_guidance(Convention.TEXTBOOK, scale, None)
            texts = ((1,),) * guidance.passes(1)
            schedule = scheduler.schedule(asked.steps, geometry.tokens)
            plan = DiffusionPlan(
                DiffusionRequest(""), 0, scale, geometry, schedule, guidance, texts, Batching(1, False)
            )
            found.append(seconds(pipeline, scheduler, plan) * 1e3)
        print(f"{name:10} {found[0]:.3f} ms, with guidance {found[1]:.3f} ms")


if __name__ == "__main__":
    main()
