"""Engines that take and give token ids, with no tokenizer between."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.engine.encoder_features import EncoderFeatures, EncoderInput
from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner, verified
from ridgeline.engine.sampling import Outcome, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.engine.step_plan import StepPlan
from support.audit import Run, audited, calls_of, routed

MakeRunner = Callable[[Model, KVLayout], Runner]

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


class EagerRunner(Runner):
    """A Runner that asks for every op of every step."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout, eager=True)


class RecordingRunner(Runner):
    """A Runner that asks for the logits of every position, keeps them, and samples from those that were wanted."""

    def __init__(self, model: Model, layout: KVLayout, **more: Any) -> None:
        super().__init__(model, layout, **more)
        self.logits: dict[tuple[int, int], Tensor] = {}  # by request and position

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        everywhere = tuple(structs.replace(i, logits=tuple(range(len(i.tokens)))) for i in plan.items)
        logits_TV = self.forward(dataclasses.replace(plan, items=everywhere))
        wanted: list[int] = []
        start = 0
        for item in plan.items:
            for offset in range(len(item.tokens)):
                self.logits[item.request, item.start + offset] = logits_TV[start + offset].clone().cpu()
            wanted += [start + offset for offset in item.logits]
            start += len(item.tokens)
        sampled = iter(self.sampler.sample(logits_TV[wanted], rows))
        return [verified(item, list(islice(sampled, len(item.logits)))) for item in plan.items if item.logits]


class AuditedRunner(EagerRunner):
    """A Runner whose every forward is audited."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout)
        self.runs: list[Run] = []
        self.calls = calls_of(model)

    def forward(self, plan: StepPlan) -> Tensor:
        with routed(self.model) as routers, audited(self.model) as audit:
            logits = super().forward(plan)
        segments = [item.segment for item in plan.items]
        work = plan.work(self.model.attention_patterns)
        self.runs.append(Run(self.model, audit, work, segments, routers, known=self.calls))
        return logits


def token_engine(
    model: Model,
    *,
    runner: MakeRunner = Runner,
    page_size: int = 4,
    limits: Limits | None = None,
    positions: int = 1024,
    prefix_cache: bool = False,
    adapters: Mapping[str, bytes] | None = None,
    speculator: Speculator | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
) -> Engine:
    """An engine around `model` whose KV memory holds `positions` positions."""
    limits = limits or Limits()
    layout = kv_layout(model, float("1e12"), page_size, most_tokens=positions)
    executor = runner(model, layout)
    return build_engine(
        *(model, layout, limits),
        executor=executor,
        prefix_cache=prefix_cache,
        adapters=adapters,
        speculator=speculator,
        on_step=on_step,
    )


def complete(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams = GREEDY,
    *,
    encoders: Sequence[EncoderInput] = (),
    adapters: Sequence[str] = (),
    images: Sequence[EncoderFeatures | None] = (),
) -> list[list[int]]:
    """Run `prompts` together to their ends, with these inputs of an encoder, by these adapters, with these images in
    them; the tokens sampled for each. A request that fails fails the test."""
    each = zip_longest(prompts, encoders, adapters, images, fillvalue="")
    outputs: dict[int, list[int]] = {
        engine.add(GenerationRequest(prompt, params, encoder=encoder or (), images=own or None, adapter=adapter)): []
        for prompt, encoder, adapter, own in each
    }
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            if event.token is not None:
                outputs[event.request].append(event.token.token)
    return list(outputs.values())


def uncached_logits(model: Model, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits of every position of every sequence, from one forward that keeps nothing: each [length, vocabulary]."""
    from ridgeline.core.ops.kv_context import Uncached
    from ridgeline.core.ops.work import StepSegment

    lengths = [len(s) for s in sequences]
    ids_T = torch.tensor([token for s in sequences for token in s])
    positions_T = torch.cat([torch.arange(n) for n in lengths])
    kv = Uncached([StepSegment(n, n) for n in lengths])
    with torch.inference_mode():
        logits_TV = model(ids_T, positions_T, kv, torch.arange(len(ids_T)))
    return list(torch.split(logits_TV, lengths))
