"""`ridgeline transcribe` on random weights: its forms, and one line for what cannot be transcribed."""

import json
from pathlib import Path

import pytest
import soundfile

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from speech.folders import sound


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds in stereo, of 8 bits, at 22 kHz."""
    path = tmp_path_factory.mktemp("sound") / "speech.wav"
    mono = sound(2.2, rate=22_050).numpy()
    soundfile.write(path, [[value, value / 2] for value in mono.tolist()], 22_050, subtype="PCM_U8")
    return path


def test_forms(ridgeline: Run, speech_folder: Path, speech: Path) -> None:
    """Text, lines with times, data, subtitles: the same words."""

    def said(*more: object) -> str:
        ended = ridgeline("transcribe", speech, "--model", speech_folder, "--language", "en", *more)
        assert ended.code == OK, ended.err
        return ended.out

    told = json.loads(said("--json"))
    assert (told["file"], told["task"], told["language"]) == (str(speech), "transcribe", "en")
    assert told["duration"] == pytest.approx(2.2, abs=0.01)
    assert "".join(each["text"] for each in told["segments"]).strip() == told["text"]
    assert said().strip() == told["text"]
    assert said("--timestamps").count(" --> ") == len(told["segments"]) > 0
    assert said("--srt").startswith("1\n00:00:0")
    assert said("--vtt").startswith("WEBVTT\n\n00:00:0")
    assert json.loads(said("--json", "--task", "translate"))["task"] == "translate"
    windows = json.loads(said("--json", "--no-timestamps"))["segments"]
    assert [each["start"] for each in windows] == [0.0, 1.0, 2.0][: len(windows)]


def test_several_files(ridgeline: Run, speech_folder: Path, speech: Path, tmp_path: Path) -> None:
    """Each by its name, as it would be alone."""
    silent = tmp_path / "silent.flac"
    soundfile.write(silent, [0.0] * 20_000, 16_000)
    alone = ridgeline("transcribe", speech, "--model", speech_folder, "--json").json
    both = ridgeline("transcribe", speech, silent, "--model", speech_folder, "--json").json["files"]
    assert both[0] == alone
    assert (both[1]["text"], both[1]["segments"], both[1]["duration"]) == ("", [], 1.25)
    lines = ridgeline("transcribe", silent, speech, "--model", speech_folder).out.splitlines()
    assert lines[0] == f"{silent}: "
    assert lines[1].startswith(f"{speech}: ")


def test_what_cannot_be_transcribed(ridgeline: Run, speech_folder: Path, speech: Path, tmp_path: Path) -> None:
    """One line each, before a model is loaded where that can be."""
    empty, words, bare = tmp_path / "empty.wav", tmp_path / "words.wav", tmp_path / "bare.wav"
    empty.touch()
    words.write_text("no sound at all\n" * 20, encoding="utf-8")
    soundfile.write(bare, [], 16_000)
    for arguments, code, *says in (
        ((empty, "--model", speech_folder), USAGE, "is an empty file; give a wav"),
        ((words, "--model", speech_folder), USAGE, "is not a readable audio file", "wav, flac, ogg or mp3"),
        ((bare, "--model", speech_folder), USAGE, "has no audio"),
        ((tmp_path / "nowhere.wav", "--model", speech_folder), USAGE, "is not a file; give a wav"),
        (("", "--model", speech_folder), USAGE, "'' is not a file"),
        ((speech,), USAGE, "no speech model is built in"),
        ((speech, "--model", "tales"), REFUSED, "tales is not a speech model"),
        ((speech, "--model", "whisper-tiny", "--dummy-weights"), REFUSED, "whisper-tiny has no tokenizer"),
        ((speech, "--model", speech_folder, "--language", "xx"), USAGE, "the model supports de, en, fr"),
        ((speech, "--model", speech_folder, "--task", "sing"), USAGE, "transcribe or translate"),
        ((speech, "--model", speech_folder, "--srt", "--json"), USAGE, "give one of them"),
        ((speech, speech, "--model", speech_folder, "--vtt"), USAGE, "subtitles need a single file"),
        ((speech, "--model", speech_folder, "--srt", "--no-timestamps"), USAGE, "leave out --no-timestamps"),
        ((speech, "--model", speech_folder, "--chat-template", bare), USAGE, "unknown option --chat-template"),
        ((speech, "--model", speech_folder, "--enable-prefix-caching"), USAGE, "computes every prompt in full"),
    ):
        assert_one_line(ridgeline("transcribe", *arguments), code, *says)


def test_a_speech_model_answers_no_prompt(ridgeline: Run, speech_folder: Path, tmp_path: Path) -> None:
    """It reads sound; the line says how."""
    workloads = tmp_path / "workloads.json"
    workloads.write_text('{"two": {"sequences": 2, "prompt": 3, "output": 2}}')
    for command in (("run", speech_folder, "hello"), ("translate", "hello", "--model", speech_folder)):
        assert_one_line(ridgeline(*command), USAGE, "reads audio, not text; use ridgeline transcribe FILE")
    measured = ridgeline("bench", "engine", speech_folder, "--workloads", workloads)
    assert_one_line(
        measured, USAGE, "has an encoder, but workloads describe no encoder input; give a decoder-only model"
    )


def test_a_folder_is_checked(ridgeline: Run, speech_folder: Path) -> None:
    """With features of nothing for its encoder; what it says is of no matter. Tokens that its generation config has it
    never say are no setting that is passed over: `transcribe` follows them."""
    assert "suppress_tokens" in json.loads((speech_folder / "generation_config.json").read_text(encoding="utf-8"))
    ended = ridgeline("check", speech_folder, "--json")
    assert "suppress_tokens" not in ended.out + ended.err
    assert "tokens after" in ended.json["facts"]["run"], ended.out
