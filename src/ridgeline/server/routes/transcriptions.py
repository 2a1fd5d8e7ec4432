"""The routes /v1/audio/transcriptions and /v1/audio/translations, which return the text of a speech file.

Each window of a file is an ordinary engine request: it waits in the queue, is counted, and may be rejected.
"""

import asyncio
import io
import math
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from typing import Any, Final

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Completion
from ridgeline.media.audio.audio_recording import AudioRecording
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, Task
from ridgeline.media.speech.transcriber import Transcriber, Transcript, TranscriptionOptions
from ridgeline.media.speech.transcript_formats import as_json, srt, vtt
from ridgeline.server.errors import ApiError, as_invalid, invalid
from ridgeline.server.http.disconnect import run_unless_disconnected
from ridgeline.server.http.exchanges import IGNORED
from ridgeline.server.http.form import PACKAGE, is_form, read_form
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.generation import gather, new_id
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service

FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
_GRANULARITIES = "timestamp_granularities[]"
_TAKEN: Final = frozenset({"file", "model", "language", "response_format", "temperature", _GRANULARITIES})
_REFUSED: Final = {"prompt": ("",), "stream": ("", "false"), "include[]": ("",), "chunking_strategy": ("", "auto")}
"""The unsupported fields, with the values that request nothing special; files are always split into windows."""
_MAX_FIELD = 4096  # bytes per field


def check_packages() -> None:
    """Raise ValueError if a package that reads audio uploads is not installed."""
    missing = [name for name in (PACKAGE, "soundfile", "soxr") if find_spec(name) is None]
    if missing:
        raise ValueError(f"serving a speech model needs {', '.join(missing)}: run pip install 'ridgeline[audio]'")


@dataclass(frozen=True, slots=True)
class TranscriptionForm:
    """The content of an audio upload form."""

    data: bytes
    """The bytes of the audio file."""
    options: TranscriptionOptions
    response_format: str
    ignored: tuple[str, ...]
    """The names of the form's unknown fields."""


class SpeechApi:
    """The handlers of OpenAI's audio routes; without a `vocabulary` of speech tokens they reject all requests."""

    def __init__(
        self, service: Service, model: ServedModel, settings: ServerSettings, vocabulary: SpeechVocabulary | None
    ) -> None:
        self._service, self._model, self._settings, self._vocabulary = service, model, settings, vocabulary

    async def transcribe(self, request: Request) -> Response:
        """Handle POST /v1/audio/transcriptions: return the text of an audio file in its own language."""
        return await self._answer(request, "transcribe")

    async def translate(self, request: Request) -> Response:
        """Handle POST /v1/audio/translations: return the text of an audio file in English."""
        return await self._answer(request, "translate")

    async def _answer(self, request: Request, task: Task) -> Response:
        """Read the form, transcribe or translate its file, and return the response.

        Raises:
            ApiError: If the form is invalid, or a window is rejected or fails.
        """
        vocabulary = self._vocabulary
        if vocabulary is None:
            raise invalid("the model of this server does not read audio", "model", code="no_speech_model")
        form = await read_speech(request, self._settings)
        try:
            transcription_form = await self._read_form(form, task)
        finally:
            await form.close()
        with as_invalid("language"):
            vocabulary.check(transcription_form.options.language, task)
        id = new_id("transcribe-")
        transcript = await run_unless_disconnected(
            request.receive, self._transcribe(id, request.url.path, transcription_form, vocabulary)
        )
        headers = {"x-request-id": id} | (
            {IGNORED: ",".join(transcription_form.ignored)} if transcription_form.ignored else {}
        )
        return written(transcript, task, transcription_form.response_format, headers)

    async def _read_form(self, form: FormData, task: Task) -> TranscriptionForm:
        """Return the checked content of a form, or raise ApiError."""
        file, fields = form.get("file"), {name: form.getlist(name) for name in form}
        if not isinstance(file, UploadFile):
            raise invalid("file is missing: send an audio file", "file", code="missing_field")
        texts = {name: [value for value in values if isinstance(value, str)] for name, values in fields.items()}
        last_values = {name: values[-1] for name, values in texts.items() if values}
        self._model.check_name(last_values.get("model", ""))
        for name, harmless in _REFUSED.items():
            if last_values.get(name, "") not in harmless:
                raise invalid(f"{name} is not supported; leave it out", name, code="unsupported_field")
        ignored = sorted(fields.keys() - _TAKEN - _REFUSED.keys())
        if ignored and self._settings.strict:
            raise invalid("the form has an unknown field", ignored[0][:64], code="unknown_field")
        response_format = last_values.get("response_format") or "json"
        if response_format not in FORMATS:
            raise invalid(f"response_format: give one of {', '.join(FORMATS)}", "response_format")
        _check_granularities(texts.get(_GRANULARITIES, []), response_format)
        temperature = _temperature(last_values.get("temperature") or "0")
        options = TranscriptionOptions(last_values.get("language") or None, task, temperature=temperature)
        plain = tuple("".join(c for c in name if (c.isascii() and c.isalnum()) or c in "_-[]")[:64] for name in ignored)
        return TranscriptionForm(await file.read(), options, response_format, plain[:16])

    async def _transcribe(
        self, id: str, route: str, transcription_form: TranscriptionForm, vocabulary: SpeechVocabulary
    ) -> Transcript:
        """Transcribe a file window by window with the engine.

        Raises:
            ApiError: If the file is no audio, a window is rejected or fails, or the time limit passes.
        """
        windows = count()

        async def generate(prompt: list[int], params: SamplingParams, features: EncoderFeatures) -> Completion:
            own = f"{id}-{next(windows)}"
            spec = GenerationRequest(prompt, params, encoder=features, arrived=time.perf_counter_ns())
            generation = Generation(own, self._model.name, route, [spec])
            return (await gather(self._service, generation)).completions[0]

        transcriber = Transcriber(generate, self._model.tokenizer, vocabulary)
        seconds = self._settings.total_seconds
        try:
            async with asyncio.timeout(seconds):
                recording = await asyncio.to_thread(AudioRecording, io.BytesIO(transcription_form.data), "the file")
                with recording:
                    return await transcriber.transcribe(recording, transcription_form.options)
        except ValueError as error:
            raise invalid(str(error), "file", code="invalid_audio") from None
        except TimeoutError:
            message = f"the file took {seconds:g} s, which is the limit (--request-timeout): send the file in parts"
            raise ApiError(504, message, code="total_timeout") from None


async def read_speech(request: Request, settings: ServerSettings) -> FormData:
    """Return the form in a request's body, which has at most `settings.upload_bytes` bytes.

    Raises:
        ApiError: If the body is no valid form, or is too large.
    """
    if not is_form(request):
        raise invalid("the body is not multipart/form-data: send the file in a form", "file", code="invalid_form")
    return await read_form(request, settings.upload_bytes, _MAX_FIELD)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise invalid("temperature: give a number from 0 to 1", "temperature")
    return value


def _check_granularities(requested: list[str], response_format: str) -> None:
    """Raise ApiError for word timestamps, or for segment timestamps in a format other than verbose_json."""
    if any(each != "segment" for each in requested):
        raise invalid("timestamp_granularities: give segment; timestamps of words are not supported", _GRANULARITIES)
    if requested and response_format != "verbose_json":
        raise invalid("timestamp_granularities: it needs the response_format verbose_json", _GRANULARITIES)


def written(transcript: Transcript, task: Task, response_format: str, headers: dict[str, str]) -> Response:
    """Return the response with a transcript in one of `FORMATS`."""
    if response_format == "text":
        return Response(transcript.text + "\n", headers=headers, media_type="text/plain")
    if response_format == "srt":
        return Response(srt(transcript.segments), headers=headers, media_type="text/plain")
    if response_format == "vtt":
        return Response(vtt(transcript.segments), headers=headers, media_type="text/vtt")
    usage = {"usage": {"type": "duration", "seconds": math.ceil(transcript.seconds)}}
    value: dict[str, Any] = {"text": transcript.text}
    if response_format == "verbose_json":
        value = as_json(transcript, task)
    return Response(msgspec.json.encode(value | usage), headers=headers, media_type="application/json")
