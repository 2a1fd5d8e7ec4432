"""Engine profiles: every figure has a source, and each mechanism does to a price what it says."""

from dataclasses import replace

import pytest

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.device import Cache, Copies, Efficiency, HostTime
from ridgeline.price.engine_profile import (
    DEFAULT_ENGINE,
    EngineProfile,
    LargeDevices,
    MemoryRule,
    default_engine,
    engines,
    load_engine,
)
from ridgeline.price.interconnect import Curve, Interconnect
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.prompt_queue import PromptQueue
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario
from support.planned import GIB, LLAMA_3_8B, TINY, TINY_MIXTURE, card, case, decode_of, fields

PUBLISHED = ("vllm-sync", "vllm-v0", "vllm-dp", "gpt-fast", "lmdeploy", "fastertransformer", "other")
RULE = MemoryRule("total", rows=8, copies=1.0, fixed=0.0, share=0.0, linked=0.0)


def engine(**changes: object) -> EngineProfile:
    """An engine that takes nothing of a card, except what is changed."""
    plain = EngineProfile("test", "Test", {"other": "custom"}, "full", "mixed", RULE)
    return replace(plain, **changes)  # type: ignore[arg-type]


def driven(planned: Scenario, by: EngineProfile) -> Scenario:
    """The same case under another engine."""
    return Scenario(replace(planned.setup, engine=by), planned.model, planned.price)


@pytest.mark.parametrize("name", [*engines(), *PUBLISHED])
def test_every_figure_of_an_engine_has_a_source(name: str) -> None:
    profile = load_engine(name)
    stated = {"all_reduce", "admission", "policy", "memory"}
    stated |= {"host"} if profile.host is not None else set()
    stated |= {"rereads"} if profile.rereads else set()
    stated |= {"own_attention"} if profile.own_attention else set()
    stated |= {"dequantise"} if profile.dequantise else set()
    stated |= {"copies"} if profile.copies is not None else set()
    stated |= {"kinds"} if profile.kinds else set()
    assert set(profile.sources) == stated
    assert all(len(source) > 10 for source in profile.sources.values())
    assert profile.admission in ("full", "running")
    assert profile.policy in ("mixed", "prefill first")
    assert set(profile.all_reduce.values()) <= {"custom", "nccl"}
    assert profile.memory.of in ("total", "free")
    assert 0 <= profile.memory.share < 0.1
    assert all(0 < share <= 1 for share in profile.dequantise.values())


def test_an_engine_has_what_it_does_not_state_of_the_one_that_it_is_like() -> None:
    vllm, dp, sync, known = (load_engine(name) for name in ("vllm", "vllm-dp", "vllm-sync", "other"))
    assert (dp.host, dp.policy, dp.dequantise, dp.memory) == (vllm.host, vllm.policy, vllm.dequantise, vllm.memory)
    assert (dp.all_reduce, dp.own_attention, vllm.own_attention) == ({"other": "nccl"}, True, False)
    assert dp.sources["host"] == dp.sources["memory"] == "as of [engines.vllm]"
    assert sync.memory == replace(vllm.memory, copies=7.5)
    assert sync.sources["memory"].endswith("; the rest as of [engines.vllm]")
    assert (vllm.memory.fixed, vllm.memory.linked) == (known.memory.fixed, known.memory.linked)
    assert vllm.memory.large is not None
    assert load_engine("vllm-v0").memory.large is None


def test_engines_that_plan_takes_begin_with_the_default() -> None:
    assert engines()[0] == DEFAULT_ENGINE == load_engine().name
    assert {"vllm", "tensorrt-llm", "llama.cpp", "ridgeline"} <= set(engines())
    assert not set(PUBLISHED) & set(engines())
    with pytest.raises(ValueError, match=r"unknown engine 'vlm'; did you mean vllm\? the known engines are vllm, "):
        load_engine("vlm")


def test_all_reduce_goes_by_the_link_and_the_number_of_cards() -> None:
    by = engine(all_reduce={"NVLink": "custom", "pair": "custom", "other": "nccl"})
    for name in ("NVLink 4", "NVLink, cut to 400 GB/s both ways"):
        assert {by.on(card(link=Interconnect(name, 1e9, {})), n).all_reduce for n in (2, 4, 8)} == {"custom"}
    for name in ("PCIe 5", "xGMI"):
        assert [by.on(card(link=Interconnect(name, 1e9, {})), n).all_reduce for n in (2, 4, 8)] == [
            "custom",
            "nccl",
            "nccl",
        ]
    assert engine(all_reduce={"other": "nccl"}).on(card(link=Interconnect("NVLink 4", 1e9, {})), 2).all_reduce == "nccl"


def test_an_all_reduce_takes_as_long_as_the_engines_kernels_do() -> None:
    """A layer adds up twice; between eight cards that NVLink does not join the engine has NCCL alone."""
    curves = {"custom": {8: Curve((1.0,), (1e-5,))}, "nccl": {8: Curve((1.0,), (4e-5,))}}
    both = {"NVLink": "custom", "other": "nccl"}
    seconds = {}
    for name in ("NVLink 4", "PCIe 5"):
        device = card(link=Interconnect(name, 1e15, curves))
        planned = driven(case(TINY | {"num_key_value_heads": 8}, device, devices=8), engine(all_reduce=both))
        rows = {row.kind: row for row in decode_of(planned, 1, 10).classes}
        seconds[name] = rows["communication"].expected
    assert seconds["PCIe 5"] == pytest.approx(4 * seconds["NVLink 4"])


def test_the_host_hides_behind_the_card_or_comes_on_top() -> None:
    """Per sequence and per step, in the batch's step; the floor and the bound are the card's alone."""
    alone = decode_of(driven(case(TINY), engine()), 4, 100).seconds
    for overlap in (True, False):
        for step in (alone.expected / 2, alone.expected * 3):
            by = engine(host=HostTime(step - 4e-9, 0.0, 1e-9, 0.0, 0.0, overlap))
            phase = decode_of(driven(case(TINY), by), 4, 100)
            whole = max(alone.expected, step) if overlap else alone.expected + step
            assert phase.seconds.expected == pytest.approx(whole)
            assert phase.host == pytest.approx(whole - alone.expected)
            assert (phase.seconds.floor, phase.seconds.bound) == (alone.floor, alone.bound)


def test_what_this_machine_measured_stays() -> None:
    own = HostTime(1e-3, 0.0, 0.0, 0.0, 0.0)
    by = engine(host=HostTime(5e-3, 0.0, 0.0, 0.0, 0.0, overlap=True))
    assert by.on(card(host=own, calibrated=True)).host == own
    assert by.on(card(calibrated=True)).host == by.on(card()).host == by.host
    assert by.on(by.on(card())) == by.on(card())


@pytest.mark.parametrize("kv_heads", [1, 4, 8])
def test_a_kernel_for_each_query_head_reads_shared_keys_from_the_cache(kv_heads: int) -> None:
    """Eight query heads: of those that share a KV head all but the first read it from the cache. A prefill does not."""
    device = card(caches=(Cache("L1", 1e5, 9e12), Cache("L2", 1e6, 4e12)))
    planned = case(TINY | {"num_key_value_heads": kv_heads}, device)
    once, anew = (driven(planned, engine(rereads=rereads)) for rereads in (False, True))
    kv = 2 * 300 * 3 * 2 * kv_heads * 32 * 2  # layers, positions, sequences, K and V, heads, dim, bytes
    more = decode_of(anew, 3, 300).seconds.expected - decode_of(once, 3, 300).seconds.expected
    assert more == pytest.approx((8 // kv_heads - 1) * kv / 4e12, rel=1e-6)
    prompt = Work.of([StepSegment(300, 300)], planned.price.reaches)
    assert once.price.price_step(once.device, prompt).expected == anew.price.price_step(anew.device, prompt).expected


@pytest.mark.parametrize("kv_heads", [2, 8])
def test_kernels_that_only_move_a_prompts_rows_read_and_write_them(kv_heads: int) -> None:
    """Three launches a layer; queries copied once, keys and values twice, read and written. A decode has none."""
    device = card()
    device = replace(device, efficiency={**device.efficiency, "elementwise": Efficiency(2e-6, 1.0, 0.5)})
    planned = case(TINY | {"num_key_value_heads": kv_heads}, device)
    plain, copying = (driven(planned, engine(copies=copies)) for copies in (None, Copies(3, 1, 2)))
    prompts = Work.of([StepSegment(300, 300)] * 2, planned.price.reaches)
    more = (
        copying.price.price_step(copying.device, prompts).expected
        - plain.price.price_step(plain.device, prompts).expected
    )
    rows = 2 * 600 * (8 + 2 * 2 * kv_heads) * 32 * 2  # read and written, positions, heads, dim, bytes
    assert more == pytest.approx(2 * (3 * 2e-6 + rows / (0.5 * device.bandwidth)), rel=1e-6)
    assert decode_of(copying, 3, 300).seconds.expected == decode_of(plain, 3, 300).seconds.expected


def test_narrow_weights_that_have_to_be_widened_read_slower() -> None:
    """Of matrices in int8 at half of their bandwidth the bytes count twice; what is not narrow stays."""
    slow = engine(dequantise={"int8": 0.5})
    for weights, twice in (("int8", True), ("bf16", False), (None, False)):
        planned = case(TINY, weights=weights)
        one, other = (decode_of(driven(planned, by), 1, 1) for by in (engine(), slow))
        linear = [next(row.expected for row in phase.classes if row.kind == "linear") for phase in (one, other)]
        assert linear[1] / linear[0] == pytest.approx(2 if twice else 1, rel=0.02)


def test_a_mix_reads_slower_by_the_share_of_each_of_its_formats() -> None:
    """Llama 3 8B in q4_k_m: v and down of 16 of the 32 layers and the head in q6_k, the other matrices in q4_k, as
    llama.cpp's rule has it. Under an engine without shares of these formats it takes as long as its bytes."""
    planned = case(LLAMA_3_8B, weights="q4_k_m")
    plain, vllm = engine(), replace(load_engine("vllm"), host=None)
    bytewise, under_vllm, shared = (
        decode_of(driven(planned, by), 1, 1).seconds.expected for by in (plain, vllm, load_engine("llama.cpp"))
    )
    v, down = 1024 * 4096, 4096 * 14336
    raised = 16 * (v + down)
    fourth = 32 * (2 * 4096 * 4096 + 2 * v + 3 * down) - raised
    sixth = raised + 128256 * 4096
    shares = load_engine("llama.cpp").dequantise
    slower = fourth * 144 / 256 * (1 / shares["q4_k"] - 1) + sixth * 210 / 256 * (1 / shares["q6_k"] - 1)
    assert slower > 0
    assert shared - bytewise == pytest.approx(slower / planned.device.bandwidth, rel=0.001)
    assert under_vllm == bytewise


def test_matrices_of_an_expert_that_are_stored_otherwise_read_slower_on_their_own() -> None:
    """Of a mixture of eight in q4_k_m an expert's down is in q6_k in some layers: at half of their bandwidth those
    bytes count twice, and gate's and up's do not."""
    planned = case(TINY_MIXTURE | {"num_hidden_layers": 8}, weights="q4_k_m")
    plain, slow = (driven(planned, by) for by in (engine(), engine(dequantise={"q6_k": 0.5})))
    one, other = (
        next(row.expected for row in decode_of(by, 1, 1).classes if row.kind == "experts") for by in (plain, slow)
    )
    down = 4 * 2 * 256 * 768 * 210 / 256  # bytes, of the two experts of a token in the layers 0, 3, 6 and 7
    assert other - one == pytest.approx(down / planned.device.bandwidth, rel=0.02)


def test_attention_whole_on_each_card_and_experts_divided() -> None:
    """Two cards with four sequences each: attention's weights whole and its rows those of one card; experts half of
    each, over the rows of both; once a layer rows of both are gathered and scattered."""
    own = ModelCache(fields(TINY_MIXTURE)).scenario(Deployment(card(), 2, engine=engine(own_attention=True)))
    whole = case(TINY_MIXTURE, engine=engine())
    divided = case(TINY_MIXTURE, devices=2, engine=engine())
    assert own.model.kv_specs == whole.model.kv_specs
    experts = 8 * 3 * 256 * 768 * 2 * 2  # of both layers, in bf16
    assert own.price.weight_bytes == whole.price.weight_bytes - experts / 2
    mine, both, alone = (
        {row.kind: row for row in decode_of(planned, batch, 100).classes}
        for planned, batch in ((own, 4), (divided, 8), (whole, 4))
    )
    assert (mine["attention"].flops, mine["attention"].nbytes) == (alone["attention"].flops, alone["attention"].nbytes)
    assert (mine["experts"].flops, mine["experts"].nbytes) == (both["experts"].flops, both["experts"].nbytes)
    assert mine["communication"].nbytes == 2 * 8 * 256 * 2


def test_a_request_counts_with_its_end_or_with_what_it_has_on_average() -> None:
    workload = PlanWorkload(1000, 1000)
    full, running = (
        memory_of(driven(case(LLAMA_3_8B), engine(admission=how)), workload) for how in ("full", "running")
    )
    assert full.pages == running.pages
    assert (full.admitted_tokens, running.admitted_tokens) == (2000, 1500)
    assert running.users == pytest.approx(full.users * 4 / 3, rel=0.05)
    small = card(memory=16_060_522_496 / 0.9 + 0.25 * GIB + 1700 * 131_072)
    little = memory_of(driven(case(LLAMA_3_8B, small), engine(admission="running")), workload)
    assert little.layout.max_sequences(1500, 2048) >= 1
    assert (little.users, little.fits) == (0, False), "one request must fit to its end"


def test_a_sampler_takes_copies_of_the_logits_or_the_step_takes_more() -> None:
    """fp32 rows of the whole vocabulary, on two cards as on one; a large card takes more requests at once."""
    rule = replace(RULE, rows=256, large=LargeDevices(70e9, "a100", 1024), copies=7.5)
    for devices in (1, 2):
        planned = driven(case(LLAMA_3_8B, devices=devices), engine(memory=rule))
        few = memory_of(planned, PlanWorkload(8000, 192))
        assert few.logit_rows == 1024
        assert few.sampler == few.activations == 7.5 * 1024 * 128_256 * 4
    small = memory_of(driven(case(LLAMA_3_8B, card(memory=24e9)), engine(memory=rule)), PlanWorkload(1800, 200))
    assert (small.logit_rows, small.sampler) == (256, 7.5 * 256 * 128_256 * 4)
    wide = memory_of(driven(case(LLAMA_3_8B), engine(memory=rule)), PlanWorkload(8000, 192, step_tokens=65_536))
    assert wide.activations > wide.sampler
    a100 = driven(case(LLAMA_3_8B, card(name="a100-test")), engine(memory=rule))
    assert memory_of(a100, PlanWorkload(8000, 192)).logit_rows == 256


def test_the_share_is_of_the_card_or_of_what_is_free() -> None:
    total, free = (
        memory_of(driven(case(LLAMA_3_8B), engine(memory=replace(RULE, of=of))), PlanWorkload())
        for of in ("total", "free")
    )
    taken = total.weights + total.activations + total.overhead
    assert total.left == pytest.approx(0.9 * 80e9 - taken)
    assert free.left == pytest.approx(0.9 * (80e9 - taken))
    assert free.budget - taken == pytest.approx(free.left)


def test_the_rule_in_words() -> None:
    assert load_engine("vllm").memory.describe() == (
        "driver, libraries, graphs: 0.6 GiB + 1.9% of device memory (+ 0.25 GiB on several devices)"
    )
    assert "between" not in RULE.describe()


def test_first_tokens_come_between_steady_arrivals_and_marching() -> None:
    serving = LoadEstimator(driven(case(LLAMA_3_8B), engine()), PlanWorkload(512, 100))
    load = serving.load(64)
    assert load.ttft_synchronised == PromptQueue.of(serving.case, serving.workload).one(64)
    assert load.ttft.expected < load.ttft_synchronised.expected <= serving.prefill_seconds(64).expected
    assert serving.load(1).ttft == serving.load(1).ttft_synchronised


def test_a_setup_keeps_its_engine_on_another_card() -> None:
    setup = Deployment(card(), engine=load_engine("llama.cpp"))
    assert setup.on(card(name="another")).engine.name == "llama.cpp"
    assert Deployment(card()).engine.name == DEFAULT_ENGINE


def test_each_card_has_the_engine_that_is_usual_for_it_where_none_was_chosen() -> None:
    """This machine was said to run vLLM."""
    here = [card(kind="cpu", calibrated=True), card(kind="cpu", basis="probe")]
    assert [default_engine(device).name for device in (*here, card(), card(kind="cpu"))] == ["ridgeline"] * 2 + [
        "vllm"
    ] * 2
    usual = Deployment(here[1], engine=default_engine(here[1]), usual=True)
    assert usual.on(card()).engine.name == DEFAULT_ENGINE
    assert usual.on(card()).on(here[0]).engine.name == "ridgeline"


def test_ridgeline_says_where_it_does_not_run_yet() -> None:
    own, other = load_engine("ridgeline"), load_engine("vllm")
    assert "does not run on this device yet (only on CPUs and NVIDIA GPUs)" in own.unsupported_note(card())
    assert own.unsupported_note(card(title="NVIDIA Card"), 2).startswith("Ridgeline does not run split over GPUs: ")
    assert own.unsupported_note(card(kind="cpu"), 2) == other.unsupported_note(card(), 2) == ""
    assert [
        own.unsupported_note(card(kind="cpu")),
        own.unsupported_note(card(title="NVIDIA Card")),
        own.unsupported_note(card(calibrated=True)),
        other.unsupported_note(card()),
    ] == ["", "", "", ""]
    (note,) = ModelCache(fields(TINY_MIXTURE)).scenario(Deployment(card(), engine=own)).notes
    assert note == own.unsupported_note(card())
