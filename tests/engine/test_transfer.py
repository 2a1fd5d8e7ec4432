"""Prompts that one engine computes and another answers: the tokens of one engine, whatever else is asked; pages that do
not come, or are others, are computed where the answer is, and a line says so."""

import asyncio
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.apart import ASKED, GREEDY, PROMPTS, SETTINGS, alone, engine_of, pair
from engine.folders import write_model
from engine.small_models import DELTA, LATENT, LLAMA, MIXED, SLIDING
from ridgeline.backends.cpu.library import Library
from ridgeline.backends.model_loader import prepare_on_cpu
from ridgeline.core.checkpoint.weight_loader import fill_dummy
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.building import build_to_run
from ridgeline.core.ops.kv_layout import group_layers
from ridgeline.core.ops.matrix import QuantisedMatrix
from ridgeline.engine import AsyncLLM
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.engine.speculation.config import Speculation
from ridgeline.engine.transfer import consumer
from ridgeline.engine.transfer import wire as wires
from ridgeline.engine.transfer.config import KVTransfer, configured, family_of
from ridgeline.engine.transfer.identity import identity_of
from ridgeline.engine.transfer.peer import PeerOffline
from ridgeline.engine.transfer.producer import Producer
from ridgeline.engine.transfer.threads import ConnectionThreads
from ridgeline.engine.transfer.wire import (
    MAGIC,
    BandwidthProbe,
    Cancel,
    Declined,
    FromProducer,
    Hello,
    PaddingFrame,
    PagesFrame,
    PeerTimeout,
    Prefill,
    SendQueue,
    ToProducer,
    Welcome,
    Wire,
    admit,
)
from ridgeline.engine.worker.engine_messages import PeerChanged
from ridgeline.engine.worker.loop import EngineThread
from support.adapters import own_widths, write_adapter
from support.kernels import SETS

MODELS: dict[str, dict[str, Any]] = {"full": LLAMA, "sliding": SLIDING, "mixed": MIXED, "latent": LATENT}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {name: str(write_model(root / name, config=config)) for name, config in MODELS.items()}


SMALL = replace(SETTINGS, limits=Limits(tokens=24, requests=5, chunk=7))
WAYS = {
    "plain": SETTINGS,
    "whole prompts": replace(SETTINGS, limits=Limits(tokens=256, requests=6)),
    "large pages": replace(SETTINGS, page_size=16),
    "int8": replace(SETTINGS, kv="int8"),
    "fp8": replace(SETTINGS, kv="fp8"),
    "guesses": replace(SETTINGS, speculation=Speculation("ngram", 3, longest=3, shortest=1)),
    "few pages": replace(SMALL, kv_bytes=2**16),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_the_tokens_of_one_engine(folders: dict[str, str], tmp_path: Path, model: str, way: str) -> None:
    """Greedy and sampled, two choices, prompts that share a beginning, all at once; then again, which is found here."""
    if way in ("int8", "fp8") and model == "latent":
        pytest.skip("the sizes of these latents are no codes'")
    settings, folder = WAYS[way], folders[model]
    wanted = alone(folder, settings, ASKED)

    async def run() -> None:
        async with pair(folder, tmp_path, settings) as (prompts, answers):
            assert await answers.all(ASKED) == wanted
            assert not answers.reasons
            asked = [prompt for prompt, _ in ASKED if answers.engine.kv_cache_manager.max_cached_prefix(len(prompt))]
            assert len(answers.came) >= len(asked) // 2, "equal prompts may be found by the time they are begun"
            computed = sum(map(len, PROMPTS))
            assert prompts.llm.stats.computed_tokens >= 0.6 * computed, "those that begin alike are computed once"
            if way != "few pages":  # where some are preempted, and run what they had again
                of_prompts = answers.llm.stats.computed_tokens - sum(len(c) for each in wanted for c in each)
                size = max(group.page_size for _, group in answers.engine.kv_cache_manager.growing)
                assert of_prompts <= len(ASKED) * (size + 3) * 2, "no more than the last page of each runs here"
            before = len(answers.came)
            assert await answers.all(ASKED[:2]) == wanted[:2]
            if way != "few pages":
                assert len(answers.came) == before, "what is here is not asked for"

    asyncio.run(run())


def test_what_needs_every_position_runs_here(folders: dict[str, str], tmp_path: Path) -> None:
    params = replace(GREEDY, prompt_logprobs=1)

    async def run() -> None:
        async with engine_of(folders["full"]) as one, pair(folders["full"], tmp_path) as (_, answers):
            wanted = await one.llm.generate(PROMPTS[0], params)
            found = await answers.llm.generate(PROMPTS[0], params)
            assert found.choices[0].token_ids == wanted.choices[0].token_ids
            assert found.prompt_logprobs == wanted.prompt_logprobs
            assert not answers.told

    asyncio.run(run())


def test_adapters(folders: dict[str, str], tmp_path: Path) -> None:
    """Pages of an adapter are its own; another one of that name is noticed by the names of its pages."""
    widths = own_widths(folders["full"])
    loud, other = (
        str(write_adapter(tmp_path / name, widths, ("q_proj", "v_proj"), std=0.2, seed=seed))
        for seed, name in enumerate(("loud", "other"))
    )
    settings = replace(SETTINGS, adapters={"loud": loud})

    async def run() -> None:
        async with engine_of(folders["full"], settings) as one:
            plain, wanted = await one.all(ASKED[:2]), await one.all(ASKED[:2], adapter="loud")
        assert plain != wanted
        async with pair(folders["full"], tmp_path, settings) as (_, answers):
            assert await answers.all(ASKED[:2]) == plain
            assert await answers.all(ASKED[:2], adapter="loud") == wanted
            assert len(answers.came) >= 2
            assert not answers.reasons
        computing = replace(settings, adapters={"loud": other})
        async with pair(folders["full"], tmp_path, settings, computing) as (_, answers):
            assert await answers.all(ASKED[:1], adapter="loud") == wanted[:1]
            assert ["digests of its pages differ" in reason for reason in answers.reasons] == [True]
        computing = replace(settings, adapters={})
        async with pair(folders["full"], tmp_path, settings, computing) as (_, answers):
            assert await answers.all(ASKED[:1], adapter="loud") == wanted[:1]
            assert answers.reasons == [
                "no adapter 'loud' is loaded (loaded: none): name a loaded one, or load it at the start"
            ]

    asyncio.run(run())


def test_who_leaves_is_computed_no_further(folders: dict[str, str], tmp_path: Path) -> None:
    async def run() -> None:
        slow = replace(SETTINGS, limits=Limits(tokens=1, requests=6))
        async with pair(folders["full"], tmp_path, SETTINGS, slow) as (prompts, answers):
            tasks = [asyncio.create_task(answers.all([one])) for one in ASKED]
            while not prompts.engine.requests:
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while prompts.engine.requests or answers.engine.requests:
                await asyncio.sleep(0.001)
            assert prompts.llm.stats.computed_tokens < sum(len(prompt) for prompt, _ in ASKED)
            assert not answers.reasons

    asyncio.run(run())


def test_two_engines_compute_prompts(folders: dict[str, str], tmp_path: Path) -> None:
    addresses = tuple(f"unix:{tmp_path}/kv{number}" for number in (0, 1))
    wanted = alone(folders["full"], SETTINGS, ASKED)

    async def run() -> None:
        async with (
            engine_of(folders["full"], SETTINGS, KVTransfer(listen=addresses[0])) as first,
            engine_of(folders["full"], SETTINGS, KVTransfer(listen=addresses[1])) as second,
            engine_of(folders["full"], SETTINGS, KVTransfer(peers=addresses)) as answers,
        ):
            assert await answers.all(ASKED) == wanted
            assert min(each.llm.stats.computed_tokens for each in (first, second)) > 60

    asyncio.run(run())


# -- pages that do not come --------------------------------------------------------------------------------------------


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


class Fake:
    """A producer that says what a test has it say. answer: to each prompt, given the wire."""

    def __init__(self, answer: Callable[[Wire[ToProducer], Prefill], None], key: bytes = b"") -> None:
        self._answer, self._key = answer, key
        self.asked = 0
        self.cancelled = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = address_of(self._listener)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with suppress(OSError, EOFError, ValueError):
                    self._serve(connection)
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        admit(connection, self._key)
        wire: Wire[ToProducer] = Wire(connection, ToProducer)
        while True:
            try:
                message = wire.receive()
            except PeerTimeout:
                continue
            if isinstance(message, Hello):
                wire.send(Welcome())
            elif isinstance(message, BandwidthProbe):
                wire.send(PaddingFrame(message.nbytes), memoryview(bytes(message.nbytes)))
            elif isinstance(message, Cancel):
                self.cancelled += 1
            else:
                self.asked += 1
                self._answer(wire, message)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def fake(answer: Callable[[Wire[ToProducer], Prefill], None]) -> Iterator[Fake]:
    one = Fake(answer)
    yield one
    one.close()


def _hang_up(wire: Wire[ToProducer], asked: Prefill) -> None:
    raise OSError


def _say_nothing(wire: Wire[ToProducer], asked: Prefill) -> None:
    pass


def _half(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire.send(PagesFrame(asked.ticket, 56, [(0, entry, b"") for entry in range(14)]), memoryview(bytes(1000)))
    raise OSError


def _half_and_no_more(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire.send(PagesFrame(asked.ticket, 56, [(0, entry, b"") for entry in range(14)]), memoryview(bytes(1000)))


def _flood(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire.send(PagesFrame(asked.ticket, 56, [(0, entry, b"") for entry in range(50_000)]))


def _other_names(wire: Wire[ToProducer], asked: Prefill) -> None:
    names = [(0, entry, b"no digest") for entry in range(14)]
    wire.send(PagesFrame(asked.ticket, 56, names), memoryview(bytes(14 * 1024)))


def _other_pages(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire.send(PagesFrame(asked.ticket, 56, [(3, 9, b"")]), memoryview(bytes(1024)))


def _too_many(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire.send(PagesFrame(asked.ticket, 57, []), memoryview(b""))


def _decline(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire.send(Declined(asked.ticket, "not today"))


def _no_message(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire._socket.sendall(b"\0\0\0\4\xc1\xc1\xc1\xc1")


def _huge(wire: Wire[ToProducer], asked: Prefill) -> None:
    wire._socket.sendall(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_hang_up, "it closed the connection"),
        (_say_nothing, "no pages came within 0.5 s"),
        (_half, "it closed the connection"),
        (_half_and_no_more, "no pages came within 0.5 s"),
        (_flood, "it sends more pages than the KV cache of this engine has"),
        (_other_names, "the digests of its pages differ"),
        (_other_pages, "it sent other pages than this engine requested"),
        (_too_many, "it sent pages of 57 positions, which this engine did not request"),
        (_decline, "not today"),
        (_no_message, "a message is malformed"),
        (_huge, "a message is longer than the protocol allows"),
    ],
)
def test_no_pages_no_loss(
    folders: dict[str, str], answer: Callable[[Wire[ToProducer], Prefill], None], says: str
) -> None:
    wanted = alone(folders["full"], SETTINGS, ASKED[:2])

    async def run() -> None:
        with fake(answer) as peer:
            async with engine_of(folders["full"], SETTINGS, KVTransfer(peers=(peer.address,), timeout=0.5)) as answers:
                assert answers.llm.peers[peer.address].up
                assert await answers.all(ASKED[:2]) == wanted
                assert peer.asked
                assert answers.reasons[0].startswith(says), answers.reasons
                assert not answers.came
                if answer is _say_nothing:  # it is not asked again before it has been found anew
                    assert any(isinstance(each, PeerChanged) and not each.up for each in answers.told)

    asyncio.run(run())


def test_a_lost_engine_is_found_again(folders: dict[str, str], tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/kv"
    wanted = alone(folders["full"], SETTINGS, ASKED)

    async def run() -> None:
        async with engine_of(folders["full"], SETTINGS, KVTransfer(peers=(address,))) as answers:
            assert "No such file" in answers.llm.peers[address].description
            assert await answers.all(ASKED[:2]) == wanted[:2]
            for asked in (slice(2, 4), slice(6, 8)):
                async with engine_of(folders["full"], SETTINGS, KVTransfer(listen=address)):
                    while not answers.llm.peers[address].up:
                        await asyncio.sleep(0.01)
                    before = len(answers.came)
                    assert await answers.all(ASKED[asked]) == wanted[asked]
                    assert len(answers.came) > before or asked == slice(2, 4), "a prompt of 5 is not asked for"
                while answers.llm.peers[address].up:
                    await asyncio.sleep(0.01)
            assert await answers.all(ASKED[8:]) == wanted[8:]

    asyncio.run(run())


@pytest.mark.parametrize("name", ["ridgeline kv reader", "ridgeline kv writer", "ridgeline kv to"])
def test_a_connection_without_a_thread_is_ended(
    folders: dict[str, str], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system refuses one, at either end: the next try has it, and nothing is said on stderr."""
    wanted, refused, unseen = alone(folders["full"], SETTINGS, ASKED[:2]), list[str](), list[object]()
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    monkeypatch.setattr(threading, "excepthook", unseen.append)
    monkeypatch.setattr("ridgeline.engine.transfer.peer._PAUSES", (0.01,))

    async def run() -> None:
        address = f"unix:{tmp_path}/kv"
        async with (
            engine_of(folders["full"], SETTINGS, KVTransfer(listen=address)),
            engine_of(folders["full"], SETTINGS, KVTransfer(peers=(address,))) as answers,
        ):
            while not answers.llm.peers[address].up:
                await asyncio.sleep(0.01)
            assert await answers.all(ASKED[:2]) == wanted
            assert answers.came

    asyncio.run(run())
    assert len(refused) == 1
    assert not unseen


def test_pages_that_nobody_waits_for_are_not_sent() -> None:
    """The other end reads nothing until the second ones are withdrawn, so that the first ones fill the connection."""
    near, far = socket.socketpair()
    outbox, wire = (
        SendQueue(Wire(near, ToProducer), ConnectionThreads(), "a test"),
        Wire[FromProducer](far, FromProducer),
    )
    for ticket in (1, 2):
        outbox.put(PagesFrame(ticket, 4, []), memoryview(bytes(1 << 22)))
    outbox.withdraw(2)
    outbox.put(Declined(3, "the last"))
    while True:
        with suppress(PeerTimeout):
            assert wire.receive() == PagesFrame(1, 4, [])
            break
    wire.read(memoryview(bytearray(1 << 22)))
    assert wire.receive() == Declined(3, "the last")
    outbox.close()
    wire.close()


def test_who_dawdles_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no place for a stranger, and half a message is not waited for for ever."""
    monkeypatch.setattr(wires, "PATIENCE", 0.3)
    near, far = socket.socketpair()

    def dawdle() -> None:
        with suppress(OSError):
            for byte in MAGIC * 9:
                far.sendall(bytes([byte]))
                time.sleep(0.02)

    thread = threading.Thread(target=dawdle)
    thread.start()
    with pytest.raises(TimeoutError):
        admit(near, b"")
    near.close()
    thread.join()
    near, far = socket.socketpair()
    far.sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        Wire[ToProducer](near, ToProducer).receive()


def test_a_length_alone_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says that 256 MiB follow has not sent them; what comes is kept, and a message in many pieces is whole."""
    monkeypatch.setattr(wires, "PATIENCE", 0.3)
    near, far = socket.socketpair()
    far.sendall((1 << 28).to_bytes(4, "big") + bytes(100_000))
    tracemalloc.start()
    try:
        with pytest.raises(TimeoutError):
            Wire[ToProducer](near, ToProducer).receive()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    near, far = socket.socketpair()
    long = Prefill(1, 0, GenerationRequest([(7 * at) % 100_000 for at in range(150_000)]))
    sender = threading.Thread(target=Wire[FromProducer](far, FromProducer).send, args=(long,))
    sender.start()
    assert Wire[ToProducer](near, ToProducer).receive() == long
    sender.join()


def threads() -> list[str]:
    """Of connections, in this process."""
    return [each.name for each in threading.enumerate() if each.name.startswith("ridgeline kv")]


@contextmanager
def silent(backlog: int) -> Iterator[str]:
    """An address where nobody says anything; without a backlog, where nobody is even connected."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        address = address_of(listener)
        waiting = [socket.create_connection(listener.getsockname())] if not backlog else []
        yield address
        for each in waiting:
            each.close()


def test_nothing_runs_on_when_an_engine_has_ended(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is left holds the engine, and would free its tensors while the interpreter ends. Here they take
    their time to see that a connection has ended."""

    def slow(method: Callable[..., None]) -> Callable[..., None]:
        def call(own: object, peer: object, said: object) -> None:
            if said is None or isinstance(said, PeerOffline):
                time.sleep(0.3)
            method(own, peer, said)

        return call

    monkeypatch.setattr(consumer.Consumer, "_receive", slow(consumer.Consumer._receive))
    monkeypatch.setattr(Producer, "order", slow(Producer.order))

    async def run() -> None:
        async with pair(folders["full"], tmp_path) as (_, answers):
            assert len(threads()) >= 5, "who accepts; of each end who reads and who writes"
            await answers.all(ASKED[:2])
        assert not threads()

    asyncio.run(run())


@pytest.mark.parametrize("backlog", [0, 8])
def test_nor_one_that_waits_for_somebody(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    """To be connected, or to be told who it is."""
    monkeypatch.setattr(consumer, "_FIRST_TRY", 0.2)

    async def run() -> None:
        with silent(backlog) as address:
            async with engine_of(folders["full"], SETTINGS, KVTransfer(peers=(address,))):
                assert threads() == [f"ridgeline kv from {address}"]
                began = time.monotonic()
            assert not threads()
            assert time.monotonic() - began < wires.PATIENCE / 2

    asyncio.run(run())


def test_nor_one_of_somebody_who_says_nothing(folders: dict[str, str], tmp_path: Path) -> None:
    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            async with engine_of(folders["full"], SETTINGS, KVTransfer(listen=f"unix:{tmp_path}/kv")):
                client.connect(f"{tmp_path}/kv")
                while "ridgeline kv reader" not in threads():
                    await asyncio.sleep(0.001)
            assert not threads()

    asyncio.run(run())


def stranger(say: bytes) -> tuple[socket.socket, str]:
    """Who says something else to each that connects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(say)
                connection.recv(1000)
                connection.close()

    threading.Thread(target=run, daemon=True).start()
    return listener, address_of(listener)


def test_engines_that_do_not_fit(folders: dict[str, str], tmp_path: Path) -> None:
    """Another version, program, key, model, format or page size: why, once, and all is computed here."""
    wanted = alone(folders["full"], SETTINGS, ASKED[:2])
    key = b"what both know, and nobody else"

    async def refused(address: str, key: bytes = b"") -> str:
        async with engine_of(folders["full"], SETTINGS, KVTransfer(peers=(address,), key=key)) as answers:
            assert await answers.all(ASKED[:2]) == wanted
            assert not answers.reasons
            assert not answers.llm.peers[address].up
            return answers.llm.peers[address].description

    async def run() -> None:
        for said, says in (
            (MAGIC.replace(b"2", b"1") + bytes(32), "another version"),
            (b"HTTP/1.1 400 Bad Request", "not a prefill engine"),
        ):
            listener, address = stranger(said)
            assert says in await refused(address)
            listener.close()
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = address_of(free)
        assert "refused" in await refused(address)
        async with engine_of(folders["full"], SETTINGS, KVTransfer(listen=address, key=key)):
            for other in (b"", b"another key of as many bytes as"):
                assert "give both engines the same --kv-key-file" in await refused(address, other)
        for folder, settings, says in (
            (
                str(write_model(tmp_path / "other", config={**LLAMA, "rms_norm_eps": 1e-5})),
                SETTINGS,
                "has another model",
            ),
            (folders["full"], replace(SETTINGS, page_size=8), "the prefill engine has pages of 8 positions"),
            (folders["full"], replace(SETTINGS, kv="int8"), "KVFormat(name='int8'"),
            (folders["full"], replace(SETTINGS, weights="int8"), "has another model"),
        ):
            async with (
                engine_of(folder, settings, KVTransfer(listen=address, key=key)),
                engine_of(folders["full"], SETTINGS, KVTransfer(peers=(address,), key=key)) as answers,
            ):
                assert await answers.all(ASKED[:2]) == wanted
                assert not answers.llm.peers[address].up
                assert says in answers.llm.peers[address].description

    asyncio.run(run())


@pytest.mark.skipif(not SETS, reason="the kernels were not compiled")
def test_a_model_is_the_same_however_its_codes_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines on two processors, of which one has rows of codes side by side; other codes are still another model."""

    def identity(seed: int = 0, *, settled: bool = False) -> bytes:
        config = Fields({**LLAMA, "torch_dtype": "bfloat16"}, "here")
        model = build_to_run(config, weights="int4-g32+head")
        fill_dummy(model, seed)
        if settled:
            prepare_on_cpu(model)
        coded = [part for part in model.modules() if isinstance(part, QuantisedMatrix)]
        assert any(part.interleaved for part in coded) == settled
        return identity_of(config.values, model, group_layers(model.kv_specs, 16, model.context), 1024).model

    monkeypatch.setattr(Library, "interleaves", True)
    assert identity(settled=True) == identity() != identity(seed=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_with_one_other_number_is_another(dtype: str) -> None:
    """Wherever it is: fine-tunings that change few weights, or a row of the embedding, compute other pages."""
    model = build_to_run(Fields({**LLAMA, "torch_dtype": dtype}, "here"))
    fill_dummy(model, 0)
    layout = group_layers(model.kv_specs, 16, model.context)

    def identity() -> bytes:
        return identity_of(LLAMA, model, layout, 1024).model

    found, draw = [identity()], random.Random(0)
    for weight in model.parameters():
        flat = weight.detach().view(-1)
        place = draw.randrange(len(flat))
        before = flat[place].clone()
        flat[place] = before * 1.01 + 0.01
        found.append(identity())
        flat[place] = before
    assert len(set(found)) == len(found) > 10
    assert identity() == found[0]


def test_what_cannot_be_apart_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    transfer = KVTransfer(listen=f"unix:{tmp_path}/kv")
    states = str(write_model(tmp_path / "states", config=DELTA))
    for folder, settings, says in (
        (states, SETTINGS, "keeps a recurrent state"),
        (folders["full"], replace(SETTINGS, prefix_cache=False), "leave --no-prefix-cache out"),
    ):
        with pytest.raises((ModelRefused, ValueError), match=says):
            AsyncLLM(EngineThread(load_engine(folder, settings), transfer))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = address_of(taken)
        with pytest.raises(ValueError, match=f"cannot listen at {address}: Address already in use"):
            AsyncLLM(EngineThread(load_engine(folders["full"], SETTINGS), KVTransfer(listen=address)))


def test_settings() -> None:
    assert configured('{"kv_role": "kv_producer", "kv_ip": "10.0.0.1", "kv_port": 5}') == ("listen", "10.0.0.1:5")
    assert configured('{"kv_role": "kv_consumer", "kv_ip": "::1"}') == ("peer", "[::1]:14579")
    assert family_of("[::1]:5") == (socket.AF_INET6, ("::1", 5))
    for text, says in (
        ("[]", "not a JSON object"),
        ("{", "not a JSON object"),
        ('{"kv_role": "kv_both"}', "kv_producer or kv_consumer"),
        ("{}", "kv_role is None"),
        ('{"kv_role": "kv_producer", "kv_connector": "NixlConnector"}', "leave kv_connector out"),
        ('{"kv_role": "kv_producer", "kv_rank": 0}', "'kv_rank', which is not supported"),
        ('{"kv_role": "kv_producer", "kv_port": "5"}', "kv_port a number"),
        ('{"kv_role": "kv_producer", "kv_port": 0}', "not an address"),
    ):
        with pytest.raises(ValueError, match=says):
            configured(text)
    for more, says in (
        ({"listen": "nowhere"}, "not an address"),
        ({"listen": "a:1", "peers": ("b:1",)}, "only one of the two"),
        ({"peers": ("a:1", "a:1")}, "given twice"),
        ({"timeout": 0.0}, "more than 0"),
    ):
        with pytest.raises(ValueError, match=says):
            KVTransfer(**more)  # type: ignore[arg-type]


def test_a_slow_engine_holds_up_nobody(folders: dict[str, str]) -> None:
    """What comes after its time is not taken; prompts that need nobody go on meanwhile."""

    def late(wire: Wire[ToProducer], asked: Prefill) -> None:
        time.sleep(0.6)
        wire.send(Declined(asked.ticket, "late"))

    wanted = alone(folders["full"], SETTINGS, ASKED[:3])

    async def run() -> None:
        with fake(late) as peer:
            async with engine_of(folders["full"], SETTINGS, KVTransfer(peers=(peer.address,), timeout=0.3)) as answers:
                waits = asyncio.create_task(answers.all(ASKED[:2]))
                assert await answers.all(ASKED[2:3]) == wanted[2:3]
                assert not waits.done()
                assert await waits == wanted[:2]
                assert answers.reasons == ["no pages came within 0.3 s"] * len(answers.reasons)

    asyncio.run(run())
