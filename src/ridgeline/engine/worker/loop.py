"""The engine's loop, which handles messages, runs steps, and sends one message with the results of each step.

It runs in a thread of its own (`EngineThread`) or in a process.
"""

import queue
import threading
from collections.abc import Callable, Sequence

from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord, TokenEvent
from ridgeline.engine.kv.page_exchange import PageExchange
from ridgeline.engine.runner import Runner
from ridgeline.engine.setup import LoadedEngine
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.transfer.consumer import Consumer
from ridgeline.engine.transfer.identity import check_transfer, identity_of
from ridgeline.engine.transfer.producer import Producer
from ridgeline.engine.worker.engine_messages import (
    Abort,
    AddRequest,
    Died,
    FromEngine,
    GetSnapshot,
    Inspect,
    Inspected,
    PageChange,
    Refused,
    RequestAdded,
    RequestsBegun,
    Stepped,
    StepReport,
    StopChoice,
    ToEngine,
    WatchPages,
)
from ridgeline.engine.worker.snapshot import PageWatch, snapshot
from ridgeline.price.device import Device
from ridgeline.price.price import Price

Inbox = Callable[[bool], Sequence[ToEngine] | None]
"""A function that returns the messages for the engine, or None if no more will come.

With True it waits until there is something, because the engine has nothing else to do.
"""


class EngineLoop:
    """The loop that steps an engine for a user who communicates in messages (engine_messages.py)."""

    def __init__(
        self,
        engine: Engine,
        send: Callable[[FromEngine], None],
        price: Price | None = None,
        device: Device | None = None,
        inspect: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Prepare the loop of an engine.

        Args:
            engine: The engine.
            send: Receives the engine's messages.
            price: The cost model of the model, for predictions.
            device: The device for which step times are predicted.
            inspect: Answers questions about the model (inspector.py).
        """
        self.engine, self._send_event, self._price, self._device = engine, send, price, device
        self._inspect = inspect
        if price is not None and device is not None and engine.speculator is not None:
            engine.speculator.price_on(price, device)
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._report: StepReport | None = None
        self._pages: PageWatch | None = None
        self._observe, engine.on_step = engine.on_step, self._note
        engine.on_begin = lambda requests: send(RequestsBegun(requests))

    def transfer(self, how: KVTransfer, loaded: LoadedEngine, wake: Callable[[], None]) -> None:
        """Start sending KV pages of prompts to other engines, or receiving them.

        Args:
            how: The settings of the transfer.
            loaded: The loaded engine.
            wake: Makes an inbox that waits return, from any thread.

        Raises:
            ModelRefused: If the model's pages cannot be transferred.
            ValueError: If a setting excludes it, or the address to listen at is not available.
        """
        check_transfer(loaded.model, loaded.price.devices, prefix_cache=self.engine.kv_cache_manager.prefix_cache)
        assert isinstance(self.engine.executor, Runner)
        store = self.engine.executor.store
        exchange = PageExchange(self.engine.kv_cache_manager, store)
        identity = identity_of(loaded.config, loaded.model, loaded.layout, store.buffer.shape[1])
        if how.listen is not None:
            self._producer = Producer(self.engine, exchange, identity, how.listen, how.key, wake)
        else:
            self._consumer = Consumer(self.engine, exchange, identity, how, self._send_event, wake)

    def run(self, inbox: Inbox) -> None:
        """Handle messages and run steps until the inbox ends. An error of the engine itself is raised."""
        try:
            while (messages := inbox(not self.engine.has_work)) is not None:
                for message in messages:
                    self.take(message)
                for end in (self._producer, self._consumer):
                    if end is not None:
                        end.poll()
                if self.engine.has_work:
                    self.step()
        finally:
            self.engine.on_step, self.engine.on_begin = self._observe, None
            self._look_after_pages(False)
            self._end_transfer()

    def take(self, message: ToEngine) -> None:
        """Handle a message to the engine, such as a new request, and send what results from it."""
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, StopChoice):
            self._say(self.engine.stop(*message.stop))
        elif isinstance(message, GetSnapshot):
            self._send_event(snapshot(self.engine, pages=message.pages))
        elif isinstance(message, WatchPages):
            self._look_after_pages(message.on)
        elif isinstance(message, Inspect):
            self._send_event(self._inspected(message))
        else:
            assert isinstance(message, Abort)
            self._say(self.engine.abort(message.request))
            if self._consumer is not None:
                self._consumer.forget(message.request)

    def _add(self, add: AddRequest) -> None:
        try:
            request = self.engine.add(add.spec, parked=self._consumer is not None)
        except ValueError as error:
            self._send_event(Refused(add.ticket, str(error)))
        except Exception as error:  # a bug of ours: only this request fails, the others continue
            self._send_event(Refused(add.ticket, f"{type(error).__name__}: {error}", fault=True))
        else:
            self._send_event(RequestAdded(add.ticket, request))
            if self._consumer is not None:
                self._consumer.add(self.engine.requests[request])

    def _inspected(self, request: Inspect) -> Inspected | Refused:
        try:
            if self._inspect is None:
                raise ValueError("this engine cannot trace a text")
            return Inspected(request.ticket, self._inspect(request.question))
        except ValueError as error:
            return Refused(request.ticket, str(error))
        except Exception as error:  # a bug of ours: only this question fails, requests continue
            return Refused(request.ticket, f"{type(error).__name__}: {error}", fault=True)

    def step(self) -> StepReport | None:
        """Run a step of the engine and send its events; return its report, or None if it failed or nothing ran."""
        self._report = None
        events = self.engine.step()
        if self._producer is not None:
            events = self._producer.ended(events)
        report = self._report
        self._send_event(Stepped(events, self.engine.stats, report, self._changed_pages()))
        return report

    def _say(self, events: list[TokenEvent]) -> None:
        """Send the events of an abort or stop between two steps, with the counters after it."""
        self._send_event(Stepped(events, self.engine.stats, None, self._changed_pages()))

    def _end_transfer(self) -> None:
        for end in (self._producer, self._consumer):
            if end is not None:
                end.close()

    def _look_after_pages(self, on: bool) -> None:
        if self._pages is not None:
            self._pages.close()
        self._pages = PageWatch(self.engine) if on else None

    def _changed_pages(self) -> list[PageChange]:
        return [] if self._pages is None else self._pages.changes()

    def _note(self, record: StepRecord) -> None:
        if self._observe is not None:
            self._observe(record)
        predicted = floor = None
        flops = nbytes = 0.0
        if self._price is not None and self._device is not None:
            priced = self._price.price_step(self._device, record.work)
            predicted, floor = priced.expected, priced.floor
            flops, nbytes = priced.cost.total_flops, priced.cost.memory_bytes
        if self._pages is not None:
            self._pages.ran(record.plan)
        plan, owners = record.plan, [self.engine.requests[item.request] for item in record.plan.items]
        self._report = StepReport(
            plan.step,
            record.started,
            record.finished,
            [(owner.group, owner.choice, i.start, len(i.tokens)) for owner, i in zip(owners, plan.items, strict=True)],
            plan.logit_rows,
            record.decodes_only,
            predicted,
            floor,
            flops,
            nbytes,
        )


class EngineThread:
    """The thread that steps a loaded engine. The engine's messages arrive in this thread."""

    def __init__(self, loaded: LoadedEngine, transfer: KVTransfer | None = None) -> None:
        """Prepare the thread of an engine.

        Args:
            loaded: The loaded engine.
            transfer: The settings for sending KV pages to other engines, or receiving them; None for neither.
        """
        self.texts, self.info = loaded.text_processor, loaded.info()
        self._loaded, self._transfer = loaded, transfer
        self._inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._closing = False
        self._thread: threading.Thread | None = None

    def connect(self, send: Callable[[FromEngine], None]) -> None:
        """Start the thread; `send` receives the engine's messages. The errors are those of EngineLoop.transfer."""
        loop = EngineLoop(self._loaded.engine, send)
        if self._transfer is not None:
            loop.transfer(self._transfer, self._loaded, lambda: self._inbox.put(None))
        self._thread = threading.Thread(target=self._run, args=(loop, send), name="ridgeline engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        """Send the engine a message, which it handles before its next step."""
        self._inbox.put(message)

    def close(self) -> None:
        """Stop the engine's thread after its current step."""
        self._closing = True
        self._inbox.put(None)
        assert self._thread is not None
        self._thread.join()

    def _run(self, loop: EngineLoop, send: Callable[[FromEngine], None]) -> None:
        reason = "closed"
        try:
            loop.run(self._messages)
        except Exception as error:  # a bug of ours: callers must get an error instead of waiting for ever
            reason = str(error)
            raise
        finally:
            send(Died(reason))

    def _messages(self, wait: bool) -> Sequence[ToEngine] | None:
        messages = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return None if self._closing else [message for message in messages if message is not None]
