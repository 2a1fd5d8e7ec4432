"""OpenAI's routes for speech, with the official client and with forms that no client sends."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import soundfile

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.audio.audio_recording import AudioRecording
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, speech_vocabulary
from ridgeline.media.speech.transcriber import Transcriber, Transcript, TranscriptionOptions
from ridgeline.media.speech.transcript_formats import as_json, srt, vtt
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import ServedLLM, build_service
from ridgeline.server.routes import transcriptions
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running, running
from speech.folders import sound

BOUNDARY = "part"


@pytest.fixture(scope="module")
def loaded(speech_folder: Path) -> LoadedEngine:
    return load_engine(str(speech_folder))


@pytest.fixture(scope="module")
def vocabulary(speech_folder: Path, loaded: LoadedEngine) -> SpeechVocabulary:
    vocabulary = speech_vocabulary(str(speech_folder), loaded.tokenizer)
    assert vocabulary is not None
    return vocabulary


@pytest.fixture(scope="module")
def heard(loaded: LoadedEngine, vocabulary: SpeechVocabulary) -> Iterator[Running]:
    """A server of the speech model."""
    llm = AsyncLLM(loaded)
    settings = ServerSettings(models=("whisper",), upload_bytes=1 << 20)
    try:
        with running(build_service(llm, RequestQueue(llm.info, settings), settings), settings, speech=vocabulary) as up:
            yield up
    finally:
        llm.close()


@pytest.fixture
def caller(heard: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{heard.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    heard.idle()


def wav(seconds: float = 2.3) -> bytes:
    """A file of speech, of 8 bits."""
    file = io.BytesIO()
    soundfile.write(file, sound(seconds).numpy(), 16_000, format="WAV", subtype="PCM_U8")
    return file.getvalue()


def expected(heard: Running, vocabulary: SpeechVocabulary, data: bytes, options: TranscriptionOptions) -> Transcript:
    """What the same engine says of the file without a server."""
    transcriber = Transcriber.of(heard.service.llm, vocabulary)
    return asyncio.run(transcriber.transcribe(AudioRecording(io.BytesIO(data), "sound"), options))


def form(**fields: str | bytes) -> tuple[bytes, dict[str, str]]:
    """A multipart body and its header. Bytes are a file; a name is written as `timestamp_granularities` with []."""
    parts = []
    for field, value in fields.items():
        name = field.replace("__", "[]")
        own = f'; filename="{name}.wav"' if isinstance(value, bytes) else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{own}\r\n\r\n'.encode()
        parts.append(head + (value if isinstance(value, bytes) else value.encode()) + b"\r\n")
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()]), {
        "content-type": f"multipart/form-data; boundary={BOUNDARY}"
    }


def test_the_official_client(caller: openai.OpenAI, heard: Running, vocabulary: SpeechVocabulary) -> None:
    """Every form of an answer, in both tasks."""
    data = wav()
    whole = expected(heard, vocabulary, data, TranscriptionOptions("fr"))
    asked: dict[str, Any] = {"model": "whisper", "file": ("sound.wav", data), "language": "fr"}
    create = caller.audio.transcriptions.create
    assert create(**asked).text == whole.text
    assert create(**asked, response_format="text") == whole.text + "\n"
    assert create(**asked, response_format="srt") == srt(whole.segments)
    assert create(**asked, response_format="vtt") == vtt(whole.segments)
    verbose = create(**asked, response_format="verbose_json", timestamp_granularities=["segment"], temperature=0)
    told = as_json(whole, "transcribe")
    assert (verbose.text, verbose.language, verbose.duration) == (whole.text, "fr", told["duration"])
    assert [each.to_dict() for each in verbose.segments or []] == told["segments"]
    english: dict[str, Any] = {"model": "whisper", "file": ("sound.wav", data)}
    for language in (None, "fr", "de"):  # which OpenAI's route does not take
        text = expected(heard, vocabulary, data, TranscriptionOptions(language, "translate")).text
        told = {} if language is None else {"language": language}
        assert caller.audio.translations.create(**english, extra_body=told).text == text


def test_texts_are_refused(heard: Running) -> None:
    """In one line that says where to ask."""
    for route, body in (
        ("/v1/completions", {"prompt": "words"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "words"}]}),
    ):
        reply = heard.post(route, body)
        assert reply.status == 400
        error = reply.json()["error"]
        assert (error["code"], error["message"]) == (
            "unsupported_model",
            "the model transcribes speech: use /v1/audio/transcriptions",
        )


def test_files_side_by_side(heard: Running, vocabulary: SpeechVocabulary) -> None:
    """Several callers at once get what each would alone."""
    files = [wav(1.2 + 0.4 * number) for number in range(5)]
    alone = [expected(heard, vocabulary, data, TranscriptionOptions()).text for data in files]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{heard.url}/v1", api_key="none", max_retries=0) as client:
            calls = [client.audio.transcriptions.create(model="", file=("a.wav", data)) for data in files]
            return [answer.text for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == alone
    heard.idle()


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({}, "file", "file is missing"),
        ({"file": "no file"}, "file", "file is missing"),
        ({"file": b""}, "file", "not a readable audio file"),
        ({"file": b"just a few words " * 50}, "file", "not a readable audio file"),
        ({"file": wav(0.0)}, "file", "has no audio"),
        ({"file": wav(0.3), "language": "xx"}, "language", "the model supports de, en, fr"),
        ({"file": wav(0.3), "response_format": "xml"}, "response_format", "json, text, srt"),
        ({"file": wav(0.3), "temperature": "hot"}, "temperature", "from 0 to 1"),
        ({"file": wav(0.3), "temperature": "1.5"}, "temperature", "from 0 to 1"),
        ({"file": wav(0.3), "stream": "true"}, "stream", "not supported"),
        ({"file": wav(0.3), "prompt": "Names:"}, "prompt", "not supported"),
        (
            {"file": wav(0.3), "timestamp_granularities__": "word", "response_format": "verbose_json"},
            "timestamp_granularities[]",
            "words are not supported",
        ),
        ({"file": wav(0.3), "timestamp_granularities__": "segment"}, "timestamp_granularities[]", "verbose_json"),
    ],
)
def test_forms_that_are_refused(fields: dict[str, Any], param: str, says: str, heard: Running) -> None:
    """Each by the field that is wrong."""
    body, headers = form(**fields)
    reply = heard.post("/v1/audio/transcriptions", body, headers)
    assert reply.status == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert says in error["message"]
    heard.idle()


def test_bodies_that_are_no_forms(heard: Running) -> None:
    """JSON, half a form, too large a one, a model that is not here, a field that nobody knows."""
    body, headers = form(file=wav(0.3))
    route = "/v1/audio/transcriptions"
    assert heard.post(route, {"file": "x"}).json()["error"]["code"] == "invalid_form"
    assert heard.post(route, b"garbage", headers).json()["error"]["code"] == "invalid_form"
    assert heard.post(route, body, {"content-type": "multipart/form-data"}).json()["error"]["code"] == "invalid_form"
    large, _ = form(file=bytes((1 << 20) + 1))
    assert heard.post(route, large, headers).status == 413
    assert heard.post(route, form(file=wav(0.3), model="other")[0], headers).status == 404
    reply = heard.post(route, form(file=wav(0.3), hotwords="x")[0], headers)
    assert (reply.status, reply.headers["x-ridgeline-ignored-fields"]) == (200, "hotwords")
    heard.idle()


def test_silence_is_an_empty_text(heard: Running) -> None:
    """And its length is told."""
    file = io.BytesIO()
    soundfile.write(file, [0.0] * 24_000, 16_000, format="WAV")
    body, headers = form(file=file.getvalue())
    reply = heard.post("/v1/audio/transcriptions", body, headers)
    assert reply.json() == {"text": "", "usage": {"type": "duration", "seconds": 2}}


def test_a_model_that_reads_no_sound(server: Running) -> None:
    """Is named as what is wrong."""
    body, headers = form(file=wav(0.3))
    reply = server.post("/v1/audio/transcriptions", body, headers)
    assert (reply.status, reply.json()["error"]["code"]) == (400, "no_speech_model")


def test_without_the_packages(speech_folder: Path, loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A speech model is not served without what reads uploads; any other is."""
    monkeypatch.setattr(transcriptions, "find_spec", lambda name: None if name == "python_multipart" else object())
    llm = AsyncLLM(loaded)
    try:
        with pytest.raises(ValueError, match=r"needs python_multipart: run pip install 'ridgeline\[audio\]'"):
            ServedLLM(str(speech_folder), "whisper").speech(llm)
        assert ServedLLM("tales", "tales").speech(llm) is None
    finally:
        llm.close()
