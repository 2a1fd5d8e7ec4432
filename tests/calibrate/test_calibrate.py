"""Calibration: what a timer, a stage and a watch see, files that do not hold are refused. No clock is a real one."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import torch

from ridgeline import backends, price
from ridgeline.backends import priced_backend
from ridgeline.backends.cpu import cpu_launches
from ridgeline.backends.cpu.call_recording import MAX_RECORDED_ROWS
from ridgeline.backends.cpu.library import Library, library
from ridgeline.cli.bench_serve import _why_unpredicted
from ridgeline.cli.options import why_uncalibrated
from ridgeline.core import ops
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.denoiser import JOINT, LATENTS, TEXT
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families import autoencoder_kl
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.matrix import QuantisedMatrix
from ridgeline.core.ops.number_formats import KV_FORMATS, WEIGHT_FORMATS
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.rotary import Angles
from ridgeline.core.ops.work import LOGITS, TOKENS, RowAxis, StepSegment, Work
from ridgeline.insight import calibrate
from ridgeline.insight.calibrate import calibration_file, calibration_run, estimate, roofs
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.insight.calibrate.diffusion_trials import DIFFUSION_TRIALS
from ridgeline.insight.calibrate.fit import class_name
from ridgeline.insight.calibrate.local_device import this_device
from ridgeline.insight.calibrate.probe import mean_pace, undisturbed_pace
from ridgeline.insight.calibrate.roofs import (
    MIB,
    MemoryStream,
    caches,
    memory_bandwidth,
    peaks,
    products,
    stated_caches,
    working_sets,
)
from ridgeline.insight.calibrate.sampling_trials import WAYS
from ridgeline.insight.calibrate.steps import VISITS, Stopwatch, TrialRunner, TrialStep, time_steps
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import TRIALS, decode, prefill
from ridgeline.insight.trace import interference
from ridgeline.media.diffusion.pipeline_defaults import build_on_meta
from ridgeline.price.device import Cache, Device
from ridgeline.price.price import Price, traced_calls
from ridgeline.price.slowdown import Slowdown

CPU = torch.device("cpu")
TINY = TRIALS[0]
STREAM, *_, SMALL, _ = DIFFUSION_TRIALS


class Clock:
    """Time that passes only when somebody looks, or is made to pass."""

    def __init__(self, look: float = 0.0, uneven: int = 1) -> None:
        self.time, self.look, self.uneven, self.looks = 0.0, look, uneven, 0

    def __call__(self) -> float:
        self.looks += 1
        self.time += self.look * (1 + self.looks % self.uneven)
        return self.time


# -- measuring --------------------------------------------------------------------------------------------------------


def test_a_timer_makes_at_least_three_calls_and_forgets_the_first() -> None:
    clock = Clock()
    timer = Timer(CPU, 1, clock, wall=clock)
    took = iter([9.0, 1.0, 2.0, 3.0])

    def call() -> None:
        clock.time += next(took)

    assert timer.each(call, budget=6.0) == [1.0, 2.0, 3.0]


def test_a_timer_makes_one_call_of_something_long() -> None:
    clock = Clock()
    timer = Timer(CPU, 1, clock, wall=clock)

    def call() -> None:
        clock.time += 10.0

    assert timer.each(call, budget=1.0) == [10.0]
    assert timer.seconds(call, budget=9.0) == 10.0


def test_a_timer_goes_on_until_its_budget_is_spent() -> None:
    clock = Clock()
    timer = Timer(CPU, 1, clock, wall=clock)

    def call() -> None:
        clock.time += 0.1

    assert len(timer.each(call, budget=2.0)) in (19, 20)


def streams(levels: list[tuple[int, float]]) -> list[MemoryStream]:
    """Readings of working sets from 1/4 MiB to 256 MiB on a machine with memories of these sizes and speeds."""
    found = []
    for power in range(-2, 9):
        nbytes = int(2.0**power * MIB)
        speed = next(speed for size, speed in levels if nbytes <= size)
        found.append(MemoryStream(nbytes, speed, speed))
    return found


def test_caches_are_as_large_as_they_prove_to_be() -> None:
    found = streams([(1 * MIB, 50e9), (16 * MIB, 24e9), (1 << 40, 12e9)])
    held = caches(found, [("L2", 1 * MIB), ("L3", 36 * MIB)])  # the neighbours have more than half of the third level
    assert held == (Cache("L2", 1 * MIB, 50e9), Cache("L3", 16 * MIB, 24e9))
    assert memory_bandwidth(found, [("L3", 36 * MIB)]) == 12e9


def test_main_memory_is_what_no_cache_holds() -> None:
    stated = [("L2", 1 * MIB), ("L3", 384 * MIB)]
    sets = working_sets(stated)
    assert sets[-1] >= 4 * 384 * MIB
    found = [MemoryStream(n, 90e9 if n <= 384 * MIB else 20e9, 1.0) for n in sets]
    assert memory_bandwidth(found, stated) == 20e9
    assert sets[:5] == working_sets([])[:5]


def test_a_cache_that_nothing_states_is_seen() -> None:
    (cache,) = caches(streams([(4 * MIB, 50e9), (1 << 40, 10e9)]), [])
    assert (cache.nbytes, cache.bandwidth) == (4 * MIB, 50e9)
    assert caches(streams([(1 << 40, 10e9)]), []) == ()


def test_stated_caches_of_a_thread_are_its_own_and_the_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    for core in (0, 1):
        for index, (level, kind, size, shared) in enumerate(
            [("1", "Data", "32K", core), ("1", "Instruction", "32K", core), ("2", "Unified", "1024K", core),
             ("3", "Unified", "36608K", "0-1")]
        ):  # fmt: skip
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{value}\n")
    assert stated_caches(1, tmp_path) == [("L2", 1 * MIB), ("L3", 36608 * 1024)]
    assert stated_caches(2, tmp_path) == [("L2", 2 * MIB), ("L3", 36608 * 1024)]
    assert stated_caches(1, tmp_path / "nothing") == []


@pytest.fixture(scope="module")
def tiny() -> Model:
    return TINY.model(torch.float32, CPU)


def test_a_stage_runs_what_the_model_runs(tiny: Model) -> None:
    """Its page tables are its own; a prefill, a chunk after it and a decode step must end where one
    long prefill does."""
    stage = TrialRunner(tiny, 64)
    ids = []
    for step in (prefill(20), prefill(10, past=20), decode(1, 31)):
        prepared = stage.prepare(step)
        ids.append(prepared.batch.tokens.ids_N)
        last = prepared.run()
    with torch.inference_mode():
        whole = tiny(torch.cat(ids), torch.arange(31), Uncached([StepSegment(31, 31)]), torch.tensor([30]))
    assert torch.allclose(last, whole, atol=1e-5)


def test_sequences_of_a_stage_do_not_see_each_other(tiny: Model) -> None:
    stage = TrialRunner(tiny, 256)
    step = stage.prepare(prefill(20, batch=3))
    batch, together = step.batch, step.run()
    with torch.inference_mode():
        for index in range(3):
            ids, positions = batch.tokens.ids_N[20 * index : 20 * (index + 1)], torch.arange(20)
            alone = tiny(ids, positions, Uncached([StepSegment(20, 20)]), torch.tensor([19]))
            assert torch.allclose(together[index], alone[0], atol=1e-5)


def test_a_mixture_is_timed_with_the_experts_that_it_is_charged_for() -> None:
    """All rows the same token would hit the same experts, and the class would be fitted to bytes that nobody read."""
    trial = next(trial for trial in TRIALS if trial.name == "experts")
    model = trial.model(torch.float32, CPU)
    mixtures = [op for _, op in model.ops() if isinstance(op, Experts)]
    hit: list[int] = []
    for op in mixtures:
        op.register_forward_pre_hook(lambda op, args: hit.append(len(torch.unique(args[2]))))
    for rows in (8, 64):
        hit.clear()
        stage = TrialRunner(model, 128)
        stage.prepare(prefill(rows)).run()
        assert len(hit) == len(mixtures)
        for op, count in zip(mixtures, hit, strict=True):
            assert count == pytest.approx(op.touched(rows), rel=0.25)


def test_a_stopwatch_times_every_op_once_a_step_and_leaves_no_trace(tiny: Model) -> None:
    clock = Clock(look=1.0)
    timer = Timer(CPU, 1, clock, wall=Clock(look=1.0))
    watch = Stopwatch(tiny, timer)
    stage = TrialRunner(tiny, 64, watch)
    assert watch.inside == 1.0  # one look at the clock between start and end
    steps = [TrialStep("", stage.work(s), partial(stage.run, s)) for s in (decode(1, 5), prefill(7), decode(1, 9))]
    calls, probed = {op: [TOKENS] for _, op in tiny.ops()}, list[int]()
    for timed in time_steps(watch, calls, steps, 3.0, lambda: probed.append(watch.calls)):
        assert len(timed) == sum(len(op.parts) for _, op in tiny.ops())
        assert all(one.seconds < 1e-6 for one in timed), "what the watch itself takes is subtracted"
    assert not any(part in vars(op) for _, op in tiny.ops() for part in op.parts)
    assert len(probed) == VISITS + 1


def test_prompts_are_timed_after_decode_steps_which_do_not_count(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both call one op, which takes five times as long in a prompt. Each round has all steps in turn."""
    clock, order = Clock(), list[str]()
    _, op = next(iter(tiny.ops()))

    took = [0.0]
    monkeypatch.setattr(type(op), "forward", lambda *_: setattr(clock, "time", clock.time + took[0]))

    def run(name: str, seconds: float) -> None:
        order.append(name)
        took[0] = seconds
        op.forward()

    works = Work({TOKENS: 1, LOGITS: 1}, 1), Work({TOKENS: 9, LOGITS: 1}, 1)
    steps = [
        TrialStep(name, work, partial(run, name, seconds))
        for name, work, seconds in zip(("decode", "prompt"), works, (1.0, 5.0), strict=True)
    ]
    watch = Stopwatch(tiny, Timer(CPU, 1, clock, wall=Clock(look=1.0)))
    calls = {op: [TOKENS] for _, op in tiny.ops()}
    decode, prompt = time_steps(watch, calls, steps, 5.0, lambda: order.append("round"))
    assert [one.seconds for one in decode] == [1.0]
    assert [one.seconds for one in prompt] == [5.0]
    assert order.count("round") == VISITS + 1
    assert {order[place - 1] for place, name in enumerate(order) if name == "prompt"} == {"decode"}
    rounds = " ".join(order).split("round")[1:-1]
    assert all({"decode", "prompt"} == set(each.split()) for each in rounds)


def calls_of(network: PricedModule) -> dict[Op, list[RowAxis]]:
    """The space of each call of every op."""
    calls: dict[Op, list[RowAxis]] = {}
    for _, op, space in traced_calls(network):
        calls.setdefault(op, []).append(space)
    return calls


def test_an_op_that_is_called_over_several_rows_is_timed_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A denoiser's table of angles: of a text, of a picture, of both. Each call takes another second."""
    model = STREAM.model(torch.float32, CPU)
    clock, took = Clock(), cycle((1.0, 2.0, 3.0))
    watch, calls = Stopwatch(model, Timer(CPU, 1, clock, wall=Clock(look=1.0))), calls_of(model)
    turn = model.rotary.forward

    def slow(positions: torch.Tensor) -> Angles:
        clock.time += next(took)
        return turn(positions)

    monkeypatch.setattr(type(model.rotary), "forward", lambda _, positions: slow(positions))
    (timed,) = time_steps(watch, calls, [next(STREAM.prepared(model, watch))], 5.0, lambda: None)
    expected = [(TEXT, 1.0), (LATENTS, 2.0), (JOINT, 3.0)]
    assert [(one.space, one.seconds) for one in timed if one.op is model.rotary] == expected


def classes_of(network: PricedModule, *works: Work) -> set[str]:
    """Those of the kernels that steps of a network run, ours where they take it."""
    ops = Price(network).ops
    kernels = (kernel for work in works for priced in ops for kernel in priced.launches(work, priced_backend("cpu")))
    return {class_name(kernel.name, kernel.number_format) for kernel in kernels}


@pytest.fixture(scope="module")
def observed() -> set[str]:
    """The classes that trials of pictures meet, and a language model."""
    found: set[str] = set()
    for trial in (TINY, *DIFFUSION_TRIALS):
        for dtype in trial.dtypes:
            model = trial.model(dtype, CPU)
            watch = Stopwatch(model, Timer(CPU, 1))
            found |= classes_of(model, *(step.work for step in trial.prepared(model, watch)))
    return found


@pytest.mark.parametrize("name", ["z-image-turbo", "flux.2-klein-4b", "pixart-sigma-xl-2-1024-ms"])
def test_what_pipelines_run_is_observed(observed: set[str], name: str) -> None:
    """Every class of kernels of a released denoiser and autoencoder has constants of its own."""
    source, size = open_source(name), (64, 64)
    (denoiser,) = build_on_meta(source).denoisers
    assert classes_of(denoiser, denoiser.work(size, [32]), denoiser.pass_work(size, [32])) <= observed
    config = source.components["vae"].config
    assert config is not None
    vae = autoencoder_kl.build(Fields(config.values, "vae"), StorageConfig(torch.float32))
    assert classes_of(vae, vae.decode_work(PixelGrid(1, 8, 8))) <= observed


@pytest.mark.skipif(library() is None, reason="no kernels of our own here")
def test_a_recorded_step_is_timed_call_by_call(tiny: Model) -> None:
    """Every call of it is an op's, but for the two that gather the rows whose logits are wanted; and it gives what it
    gives when nobody looks."""
    clock = Clock(look=1.0)
    watch = Stopwatch(tiny, Timer(CPU, 1, clock, wall=clock))
    stage = TrialRunner(tiny, 64, watch)
    with watch.on():
        step = stage.prepare(decode(2, 20))
        assert step.recording is not None
        expected = step.run().clone()
        assert not any(watch.seconds.values())
        assert torch.equal(watch.again(step.recording), expected)
    assert [len(seconds) for seconds in watch.seconds.values()] == [1] * len(watch.seconds)
    assert watch.spent == 0.0
    owned = sum(owner is not None for owner in watch._owners[step.recording])
    assert owned == len(step.recording.calls) - 2
    assert stage.prepare(decode(2, 20), recorded=False).recording is None
    assert stage.prepare(decode(MAX_RECORDED_ROWS + 1, 3)).recording is None
    assert stage.prepare(prefill(2)).recording is None


@pytest.mark.parametrize("tiles", [False, True])
def test_each_class_of_codes_is_timed_in_several_sizes(monkeypatch: pytest.MonkeyPatch, *, tiles: bool) -> None:
    """Check for several sizes: one does not tell the time of a launch from that of a byte. AMX tiles have them too."""
    monkeypatch.setattr(cpu_launches, "multiplies_tiles", lambda: tiles)
    sizes: dict[str, set[tuple[float, ...]]] = {}
    for trial in TRIALS:
        model = build(Fields(trial.config, trial.name), torch.bfloat16, recipe=trial.recipe)
        for step in trial.steps:
            work = Work.of([StepSegment(q, kv) for q, kv in step], model.attention_patterns)
            for priced in Price(model).ops:
                for kernel in priced.launches(work, priced_backend("cpu")):
                    cost = kernel.cost
                    sizes.setdefault(kernel.name, set()).add((cost.total_flops, cost.total_bytes))
    weights = {stored.kind for stored in WEIGHT_FORMATS if stored.code}
    for kind in weights:
        for rows in ("one", "few", "many"):
            for own in (f"linear.{rows}.{kind}", f"head.{rows}.{kind}"):
                # In bf16, and where the processor multiplies bytes, codes lie side by side.
                assert len(sizes.get(f"{own}.interleaved", sizes.get(own, set()))) >= 3, own
    two = "diagonal" if tiles else "two"
    for own in ("linear.one", f"linear.{two}", "linear.few", "linear.many", "head.one", f"head.{two}"):
        assert len(sizes[own]) >= 3, own
    for kept in (kept.code for kept in KV_FORMATS if kept.code):
        for dim in (32, 64, 128):
            assert len(sizes[f"attention.paged.{dim}.{kept}"]) >= 3


def test_products_of_int8_have_a_roof_of_their_own() -> None:
    clock = Clock(look=1e-3)
    found = products(Timer(CPU, 1, clock, wall=clock), 1e-3)
    assert found == {name: pytest.approx(2 * 512**3 / 1e-3) for name in ("fp32", "bf16", "int8")}
    assert peaks({"fp32": 3.0, "bf16": 1.0, "int8": 9.0}) == {"fp32": 3.0, "bf16": 3.0, "int8": 9.0}


def test_the_faster_of_two_products_is_the_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's, or our own kernels', which multiply the same."""
    clock, shared = Clock(), list[int]()

    def taking(seconds: float) -> Callable[..., object]:
        return lambda *_: lambda: setattr(clock, "time", clock.time + seconds)

    monkeypatch.setattr(roofs, "share_threads", lambda: shared.append(1))  # ours have as many as torch has
    monkeypatch.setattr(roofs, "_ways", lambda *_: [taking(4e-3), taking(1e-3)] if shared else [])
    found = products(Timer(CPU, 1, clock, wall=clock), 1e-3)
    assert found == {name: pytest.approx(2 * 512**3 / 1e-3) for name in ("fp32", "bf16", "int8")}
    monkeypatch.undo()
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        assert len(roofs._ways(dtype, CPU)) == (2 if library() is not None else 1)
    a, b = torch.randn(2, 40, 40)
    first, *ours = roofs._ways(torch.float32, CPU)
    for each in ours:
        torch.testing.assert_close(each(a, b.T.contiguous())()[0], first(a, b)())  # type: ignore[index]


def test_our_integer_product_is_that_of_the_engine(kernels: Library) -> None:
    """Compare with torch's integer product, rounded to bf16 at the end.

    Our kernel rounds rows to int8, which changes nothing if the largest number of each row is 127.
    """
    a, b = (torch.randint(-127, 128, (96, 96), dtype=torch.int8) for _ in range(2))
    a[:, 5] = 127
    exact = torch._int_mm(a, b.T.contiguous())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofs, "library", lambda: kernels)
        _, own = roofs._ways(torch.int8, CPU)
    assert torch.equal(own(a, b)()[0], exact.to(torch.bfloat16))  # type: ignore[index]


def test_the_layout_of_the_integer_product_is_that_of_a_loaded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the layouts: a roof of another one would be that of instructions that no model runs."""
    kernels, seen = library(), list[bool]()
    if kernels is None:
        pytest.skip("no kernels of ours")
    monkeypatch.setattr(kernels, "products", lambda _, matrices: seen.append(matrices[0].codes.interleaved))
    roofs._ways(torch.int8, CPU)[1](*torch.zeros(2, 32, 32, dtype=torch.int8))()
    trial = next(trial for trial in TRIALS if trial.name == "tiny w8a8")
    loaded = trial.model(torch.bfloat16, CPU)
    assert seen == [any(module.interleaved for module in loaded.modules() if isinstance(module, QuantisedMatrix))]


def test_what_no_roof_explains_keeps_the_pace_of_launches() -> None:
    pace = Slowdown(launch=2.0, compute=3.0, memory=5.0)
    assert pace.factor_for(1.0, 0.0, 0.0) == 2.0
    assert pace.factor_for(1.0, 1.0, 0.0) == 3.0
    assert pace.factor_for(1.0, 0.0, 1.0) == 5.0
    assert pace.factor_for(1.0, 0.5, 0.0) == 2.5
    assert pace.factor_for(1.0, 2.0, 2.0) == 4.0
    assert mean_pace([Slowdown(1, 2, 3), Slowdown(3, 4, 8)]) == Slowdown(2, 3, 5.5)
    assert undisturbed_pace([pace, Slowdown(1, 1, 1), Slowdown(9, 4, 9), Slowdown(3, 9, 9)]) == Slowdown(2, 3, 5)
    assert pace.over(Slowdown(1, 2, 4)) == Slowdown(2.0, 1.5, 1.25)


@pytest.fixture(scope="module")
def calibrated() -> Calibration:
    """A whole calibration of a trial of either sort, on a clock of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration_run, "TRIALS", (TINY,))
        patch.setattr(calibration_run, "DIFFUSION_TRIALS", (SMALL,))
        patch.setattr(calibration_run, "streams", lambda *_: streams([(1 * MIB, 50e9), (1 << 40, 12e9)]))
        patch.setattr(calibration_run, "products", lambda *_: {"fp32": 1e11, "bf16": 2e10})
        said: list[tuple[str, float]] = []
        clock = Clock(look=1e-3, uneven=5)
        found = calibration_run.calibrate(
            Timer(CPU, 1, clock, wall=clock), lambda what, share: said.append((what, share)), seconds=0.001
        )
    assert [share for _, share in said] == sorted(share for _, share in said)
    assert said[-1] == ("done", 1.0)
    return found


def test_a_calibration_prices_every_op_by_a_class_of_its_own(calibrated: Calibration, tiny: Model) -> None:
    device = calibrated.device()
    assert device.calibrated
    price, work = Price(tiny), Work.of([StepSegment(1, 40)], tiny.attention_patterns)
    assert device.native == (library() is not None)
    for priced in price.ops:
        for kernel in priced.launches(work, price.backend_on(device)):
            timed = device.efficiency[class_name(kernel.name, kernel.number_format)]
            assert (timed.recorded is not None) == device.native
    step = price.price_step(device, work)
    assert step.floor <= step.bound <= step.expected
    assert step.host > 0


def test_residuals_are_kept(calibrated: Calibration) -> None:
    steps = len(TINY.steps) * 2 + len(SMALL.steps)
    assert len({residual.where for residual in calibrated.residuals}) == steps
    for name in {residual.kernel for residual in calibrated.residuals}:
        assert calibrated.classes[name].observations == sum(r.kernel == name for r in calibrated.residuals)


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibration.json"


def test_a_calibration_survives_its_file(calibrated: Calibration, cache: Path) -> None:
    assert calibration_file.save([calibrated]) == cache
    assert calibration_file.load(1) == calibrated
    assert this_device(1) == calibrated.device()


def test_a_file_without_the_parts_of_the_host_time_is_read(calibrated: Calibration, cache: Path) -> None:
    """Check that a calibration without them predicts what it did: the host time as one sum."""
    assert calibrated.host is not None
    assert calibrated.host.parts is not None
    assert set(calibrated.host.parts.sampling) == set(WAYS)
    calibration_file.save([calibrated])
    stored = json.loads(cache.read_text())
    del stored["calibrations"][0]["host"]["parts"]
    cache.write_text(json.dumps(stored))
    assert this_device(1).host == dataclasses.replace(calibrated.host, parts=None)


def test_calibrations_of_other_threads_are_kept(calibrated: Calibration, cache: Path) -> None:
    calibration_file.save([calibrated])
    calibration_file.save([dataclasses.replace(calibrated, threads=2, bandwidth=1.0)])
    assert calibration_file.load(1) == calibrated
    assert calibration_file.load(2).bandwidth == 1.0
    with pytest.raises(
        calibration_file.Uncalibrated, match=r"for 1 and 2 threads, not for 3; run `ridgeline calibrate --threads 3`"
    ):
        calibration_file.load(3)


@pytest.mark.parametrize(
    ("changed", "label"),
    [
        ("processor", "the processor"),
        ("torch", "torch"),
        ("ridgeline", "Ridgeline"),
        ("kernels", "the kernels for"),
        ("ops", "the code of ops and kernels"),
        ("pricing", "the code of prices and calibration"),
    ],
)
def test_a_stale_calibration_is_refused_in_one_line_that_says_what_changed(
    calibrated: Calibration, cache: Path, changed: str, label: str
) -> None:
    calibration_file.save([calibrated])
    stored = json.loads(cache.read_text())
    now, stored["key"][changed] = stored["key"][changed], "another one"
    cache.write_text(json.dumps(stored))
    with pytest.raises(calibration_file.StaleCalibration) as refused:
        this_device(1)
    assert str(refused.value) == (
        f"the calibration file {cache} is out of date: it was measured with {label} another one (now {now}); run "
        "`ridgeline calibrate` (three minutes)"
    )
    calibration_file.save([dataclasses.replace(calibrated, threads=2)])  # does not keep what is stale
    with pytest.raises(calibration_file.Uncalibrated, match="for 2 threads, not for 1"):
        calibration_file.load(1)


def test_all_changes_since_a_calibration_are_named(calibrated: Calibration, cache: Path) -> None:
    calibration_file.save([calibrated])
    stored = json.loads(cache.read_text())
    stored["key"] |= {"processor": "Old, 64 cores", "torch": "1.0"}
    del stored["key"]["ops"]
    cache.write_text(json.dumps(stored))
    now = calibration_file.current_key()
    with pytest.raises(calibration_file.StaleCalibration) as refused:
        calibration_file.load(1)
    assert (
        f"with the processor Old, 64 cores (now {now['processor']}); with torch 1.0 (now {now['torch']}); with the "
        f"code of ops and kernels unknown (now {now['ops']}); run"
    ) in str(refused.value)


def test_an_estimate_says_what_changed_since_the_calibration(calibrated: Calibration, cache: Path) -> None:
    """Check the device of `run`, `trace` and `serve`, which said only that it is not calibrated."""
    calibration_file.save([calibrated])
    assert this_device(1, estimate=True).stale_calibration == ""
    stored = json.loads(cache.read_text())
    stored["key"]["torch"] = "1.0"
    cache.write_text(json.dumps(stored))
    estimated = this_device(1, estimate=True)
    assert not estimated.calibrated
    assert estimated.stale_calibration.startswith(f"the calibration file {cache} is out of date")
    assert estimated.stale_calibration in interference.calibration(estimated)
    reason = f"The load is not predicted: {estimated.stale_calibration}, and start the server again; or name a device: "
    assert _why_unpredicted(local=True).startswith(reason)
    assert "out of date" not in _why_unpredicted(local=False)
    cache.unlink()
    assert this_device(1, estimate=True).stale_calibration == ""


def test_a_gpu_without_calibration_is_named_with_the_remedy(calibrated: Calibration, cache: Path) -> None:
    gpu = torch.device("cuda", 1)
    assert (
        why_uncalibrated(gpu) == "this machine is not calibrated; run `ridgeline calibrate --device cuda:1` (a minute)"
    )
    path = calibration_file.save([dataclasses.replace(calibrated, kind="gpu", host=None)], "gpu-1")
    path.write_text(path.read_text().replace('"torch": "', '"torch": "0.'))
    assert f"the calibration file {path} is out of date: it was measured with torch 0." in why_uncalibrated(gpu)


@pytest.mark.parametrize(
    "changed",
    [
        "price/price.py",
        "price/cached_ops.py",
        "calibrate/fit.py",
        "calibrate/local_device.py",
        "ops/norm.py",
        "backends/cpu/cpu_launches.py",
        "backends/cuda/triton/product.py",
        "backends/cpu/libridgeline.so",
    ],
)
def test_a_calibration_is_stale_when_its_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Of the ops and kernels that were measured, of what fits the constants, and of what reads them."""
    for room in (calibrate, price, ops, backends):
        copied = shutil.copytree(room.__path__[0], tmp_path / Path(room.__path__[0]).name)
        monkeypatch.setattr(room, "__path__", [str(copied)])
    before = calibration_file.current_key()
    with (tmp_path / changed).open("a") as stream:
        stream.write("# another line\n")
    after = calibration_file.current_key()
    expected = "ops" if changed.startswith(("ops", "backends")) else "pricing"
    assert [name for name in before if before[name] != after[name]] == [expected]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": {}}', '{"key": 5}', '{"key": [1]}'])
def test_a_broken_file_is_refused(cache: Path, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    with pytest.raises(calibration_file.Uncalibrated):
        calibration_file.load(1)


def test_a_file_with_other_fields_is_refused(calibrated: Calibration, cache: Path) -> None:
    calibration_file.save([calibrated])
    stored = json.loads(cache.read_text())
    del stored["calibrations"][0]["host"]
    cache.write_text(json.dumps(stored))
    with pytest.raises(calibration_file.Uncalibrated, match="cannot be read"):
        calibration_file.load(1)


@pytest.mark.parametrize("damage", [[], 5, "text", {"streams": 1}, None])
def test_a_damaged_calibration_is_refused(calibrated: Calibration, cache: Path, damage: object) -> None:
    calibration_file.save([calibrated])
    stored = json.loads(cache.read_text())
    stored["calibrations"] = [damage]
    cache.write_text(json.dumps(stored))
    with pytest.raises(calibration_file.Uncalibrated, match="cannot be read"):
        calibration_file.load(1)
    stored["calibrations"] = [calibrated.as_json() | {"classes": damage}]
    cache.write_text(json.dumps(stored))
    with pytest.raises(calibration_file.Uncalibrated, match="cannot be read"):
        calibration_file.load(1)


def test_the_accelerator_has_a_file_of_its_own(calibrated: Calibration, cache: Path) -> None:
    calibration_file.save([calibrated])
    other = dataclasses.replace(calibrated, kind="gpu", host=None)
    assert calibration_file.save([other], calibration_file.gpu_kind(0)).name == "calibration-gpu.json"
    assert calibration_file.save([other], calibration_file.gpu_kind(1)).name == "calibration-gpu-1.json"
    assert calibration_file.load_all("gpu") == calibration_file.load_all("gpu-1") == [other]
    assert calibration_file.load_all() == [calibrated]
    assert other.device().host is None


def test_no_calibration_is_said_or_estimated(cache: Path) -> None:
    with pytest.raises(calibration_file.Uncalibrated, match="not calibrated; run `ridgeline calibrate`"):
        this_device(1)
    threads = torch.get_num_threads()
    estimated = this_device(1, estimate=True)
    assert not estimated.calibrated
    assert estimated.basis == "probe"
    assert "not calibrated" in estimated.sources["efficiency"]
    assert estimated.peak("bf16") > 0
    assert torch.get_num_threads() == threads


def test_a_probe_is_made_once_a_machine_and_code(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = this_device(1, estimate=True)
    probes: list[int] = []

    def probed(timer: Timer, seconds: float) -> Device:
        probes.append(timer.threads)
        return first

    monkeypatch.setattr(estimate, "probed", probed)
    assert this_device(1, estimate=True) == first
    assert not probes
    kept = cache.parent / "probe-1.json"
    for broken in (kept.read_text(encoding="utf-8").replace('"torch":"', '"torch":"0.'), "{", '{"key": {}}'):
        kept.write_text(broken, encoding="utf-8")
        this_device(1, estimate=True)
    this_device(2, estimate=True)
    assert probes == [1, 1, 1, 2]


def test_a_probe_that_cannot_be_kept_is_still_an_answer(cache: Path) -> None:
    cache.parent.write_text("a file where the folder would be", encoding="utf-8")
    assert this_device(1, estimate=True).peak("bf16") > 0
