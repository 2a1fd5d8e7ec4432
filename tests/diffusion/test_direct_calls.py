"""A denoiser that is called directly does what a pipeline has it do: the same kernels, on as many threads, over texts
that were prepared once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from ridgeline.backends.cpu.library import Library, library
from ridgeline.backends.model_loader import load_denoiser
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.util.host import cores

STEPS = 3


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def direct(model: str) -> Denoiser:
    """The denoiser of a built-in pipeline."""
    return load_denoiser(str(open_source(model).components["transformer"].folder))


@dataclass
class Watched:
    """What one way of calling a denoiser comes to."""

    kernels: list[str] = field(default_factory=list)
    threads: list[tuple[int, int, bool]] = field(default_factory=list)
    prepared: int = 0
    velocities: list[Tensor] = field(default_factory=list)


class Watch:
    """Watches denoisers of one class: threads of kernels and of torch, gradients on or off, and texts prepared."""

    def __init__(self, kind: type[Denoiser], monkeypatch: pytest.MonkeyPatch) -> None:
        kernels = library()
        assert kernels is not None
        self.found, self.kernels, self.own = Watched(), kernels, 0
        forward, prepare, threads = kind.forward, kind.prepare, Library.threads

        def shared(kernels: Library, count: int) -> None:
            self.own = count
            threads(kernels, count)

        def called(denoiser: Denoiser, *given: Any, **named: Any) -> Tensor:
            state = self.own, torch.get_num_threads(), torch.is_inference_mode_enabled()
            self.found.threads.append(state)
            velocity = forward(denoiser, *given, **named)
            self.found.velocities.append(velocity)
            return velocity

        def prepares(denoiser: Denoiser, *given: Any) -> Any:
            self.found.prepared += 1
            return prepare(denoiser, *given)

        monkeypatch.setattr(Library, "threads", shared)
        monkeypatch.setattr(kind, "forward", called)
        monkeypatch.setattr(kind, "prepare", prepares)

    def __enter__(self) -> Watched:
        self.found = Watched()
        self.kernels.threads(1)  # as another model may have left them
        self.kernels.recording = []
        return self.found

    def __exit__(self, *_: object) -> None:
        assert self.kernels.recording is not None
        self.found.kernels = [function.__name__ for function, _ in self.kernels.recording]
        self.kernels.recording = None


@pytest.mark.skipif(library() is None, reason="without our kernels there is nothing to share")
@pytest.mark.parametrize("model", ["digits", "digits-video"])
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_called_as_a_pipeline_calls_it(model: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel by kernel, thread by thread, and bit for bit."""
    pipeline, denoiser = load_pipeline(model), direct(model)
    torch.set_num_threads(threads)
    plan: DiffusionPlan = pipeline.plan(DiffusionRequest("a handwritten seven", steps=STEPS, guidance=0.0, seed=1))
    texts = pipeline.encode(plan)
    watch = Watch(type(denoiser), monkeypatch)
    with watch as theirs:
        shown = [Noise(plan.seed, 1, plan.geometry.latents)()]
        shown += [step.latents for step in pipeline.denoise(plan, texts)]
    with watch as ours:
        for step in range(STEPS):
            denoiser(shown[step], plan.schedule.time(step), [text.clone() for text in texts])
    assert ours.threads == theirs.threads == [(threads, threads, True)] * STEPS
    assert ours.kernels == theirs.kernels
    assert len(ours.kernels) > STEPS
    assert ours.prepared == theirs.prepared == 1
    assert all(map(torch.equal, ours.velocities, theirs.velocities))


@pytest.mark.parametrize("threads", [None, 1])
def test_threads_are_those_of_a_pipeline(threads: int | None) -> None:
    """One for a small model, unless they are stated."""
    for load in (load_denoiser, load_pipeline):
        source = open_source("digits")
        torch.set_num_threads(cores())
        load(str(source.components["transformer"].folder) if load is load_denoiser else source, threads=threads)
        assert torch.get_num_threads() == 1
    with pytest.raises(ValueError, match=rf"^threads is {cores() + 1}; it must be from 1 to {cores()}, the cores"):
        load_denoiser(str(open_source("digits").components["transformer"].folder), threads=cores() + 1)


@pytest.mark.parametrize("model", ["digits", "digits-video"])
def test_what_was_prepared_is_not_stale(model: str) -> None:
    """Other texts, other numbers in the same tensor, other weights: each gives what `prepare` gives now."""
    denoiser = direct(model)
    latents = Noise(1, 1, (denoiser.channels, *((9,) if denoiser.generates_video else ()), 16, 16))()
    says = torch.Generator().manual_seed(1)
    text, other = (torch.randn(tokens, denoiser.text_width, generator=says) for tokens in (5, 7))

    def check(text: Tensor) -> Tensor:
        velocity: Tensor = denoiser(latents, 0.5, [text])
        assert torch.equal(velocity, denoiser(latents, 0.5, denoiser.prepare([text])))
        return velocity

    found = [check(text), check(other), check(text)]
    text.add_(1)  # a multiple would be normed away
    found.append(check(text))
    first = next(p for name, p in denoiser.named_parameters() if "cap_embedder" in name or "text_embedder" in name)
    with torch.no_grad():
        first.mul_(2)
    found.append(check(text))
    assert torch.equal(found[0], found[2])
    kept = [found[0], found[1], found[3], found[4]]
    assert not any(torch.equal(one, two) for i, one in enumerate(kept) for two in kept[:i])
