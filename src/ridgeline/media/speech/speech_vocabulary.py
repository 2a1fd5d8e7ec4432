"""The special tokens of a speech model (start of transcript, languages, tasks, timestamps) and the rules for them.

They are read from generation_config.json as in Whisper's releases, or from config.json; ids that neither states are
those of the tokenizer's special tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline.core.checkpoint import ModelSource, open_source
from ridgeline.core.models import SPEECH, ModelRefused, family_of
from ridgeline.core.models.families.whisper import FRAMES
from ridgeline.core.text import Tokenizer
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.engine.token_rules import TimestampRules, TokenRules

Task = Literal["transcribe", "translate"]

_START, _NO_TIMESTAMPS, _END = "<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>"
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True)
class SpeechVocabulary:
    """The special token ids of a speech model, and the sizes of its encoder's input."""

    start: int
    """The token that begins every transcript."""
    end: int
    """The token that ends every transcript; lower ids are text."""
    no_timestamps: int
    """The token that disables timestamps, the last id before the timestamps."""
    languages: Mapping[str, int]
    """The language tokens by code; an English-only model has none."""
    tasks: Mapping[str, int]
    """The task tokens (transcribe, translate) by name; an English-only model has none."""
    suppressed: tuple[int, ...]
    """The tokens that a transcript never contains."""
    suppressed_first: tuple[int, ...]
    """The tokens with which a transcript never begins."""
    max_initial_timestamp_index: int | None
    """The index of the latest timestamp with which the first segment may begin; None if there is no limit."""
    bins: int
    """The mel bins of the log-mel features."""
    frames: int
    """The frames of a window's log-mel features."""
    context: int
    """The number of positions of the decoder."""

    @classmethod
    def read(cls, source: ModelSource, tokenizer: Tokenizer) -> "SpeechVocabulary":
        """Read the special tokens and sizes of a speech model from its folder.

        Raises:
            ModelRefused: If it is not a speech model, it has no tokenizer, or a special token is missing or invalid.
        """
        config, stated = source.config, source.generation
        family = family_of(config)
        if family not in SPEECH:
            raise ModelRefused(
                f"{source.title} is not a speech model ({family.architecture}); give the folder of a speech model, "
                "such as Whisper's"
            )
        if isinstance(tokenizer, ByteTokenizer):
            raise ModelRefused(
                f"{source.title} has no tokenizer, so its tokens cannot be decoded to text; give a complete checkpoint "
                "folder"
            )
        ids = _Ids(source, tokenizer, config.count("vocab_size"))
        no_timestamps = ids.of("no_timestamps_token_id", _NO_TIMESTAMPS)
        start = ids.of("decoder_start_token_id", _START)
        tasks = {}
        if stated.get("is_multilingual", "<|transcribe|>" in tokenizer.control):
            named = stated.get("task_to_id")
            named = named if isinstance(named, dict) else {}
            tasks = {task: ids.known(named.get(task), f"<|{task}|>") for task in ("transcribe", "translate")}
        most_first = stated.get("max_initial_timestamp_index")
        return cls(
            start,
            ids.of("eos_token_id", _END),
            no_timestamps,
            ids.languages(start, min(tasks.values())) if tasks else {},
            tasks,
            ids.listed("suppress_tokens"),
            ids.listed("begin_suppress_tokens"),
            most_first if isinstance(most_first, int) and most_first >= 0 else None,
            config.count("num_mel_bins", 80),
            FRAMES * config.count("max_source_positions", 1500),
            config.count("max_target_positions", 448),
        )

    def check(self, language: str | None, task: Task) -> None:
        """Raise ValueError if the model does not support a language or a task."""
        if language is not None and language not in (self.languages or ("en",)):
            known = ", ".join(sorted(self.languages)) or "en"
            raise ValueError(f"language is {language!r}; the model supports {known}")
        if task == "translate" and not self.tasks:
            raise ValueError("task is 'translate', but this model only transcribes English; use 'transcribe'")

    def prompt(self, language: str | None, task: Task, *, timestamps: bool) -> tuple[list[int], TokenRules]:
        """Return the prompt of a transcript and the token rules that it follows.

        Without a language, the first token that a multilingual model chooses is the language; the rules then force the
        tokens for the task and, without timestamps, for their absence.
        """
        after = [(self.tasks[task],)] if self.tasks else []
        after += [] if timestamps else [(self.no_timestamps,)]
        opening: list[tuple[int, ...]] = []
        prompt = [self.start]
        if self.languages and language is None:
            opening = [tuple(sorted(self.languages.values())), *after]
        else:
            prompt += [self.languages[language]] if self.languages and language is not None else []
            prompt += [token for (token,) in after]
        moments = TimestampRules(self.no_timestamps + 1, self.end, self.no_timestamps, self.max_initial_timestamp_index)
        rules = TokenRules(tuple(opening), self.suppressed, self.suppressed_first, moments if timestamps else None)
        return prompt, rules

    def language_of(self, token: int) -> str | None:
        """Return the code of a language token, None for any other token."""
        return next((code for code, own in self.languages.items() if own == token), None)


def speech_vocabulary(model: str, tokenizer: Tokenizer) -> SpeechVocabulary | None:
    """Return the special tokens and sizes of a speech model by its name, None for a supported model of another kind.

    Raises:
        ModelRefused: If the model cannot be opened or its architecture is not supported, or if a speech model has no
            tokenizer, or a special token is missing or invalid.
    """
    source = open_source(model)
    return SpeechVocabulary.read(source, tokenizer) if family_of(source.config) in SPEECH else None


class _Ids:
    """The token ids that a folder states, each checked against the vocabulary size."""

    def __init__(self, source: ModelSource, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.source, self.tokenizer, self.vocabulary = source, tokenizer, vocabulary

    def of(self, field: str, literal: str) -> int:
        """Return the token id that a config field states, else that of a special token."""
        stated = self._stated(field)
        return self.known(stated[0] if isinstance(stated, list) and stated else stated, literal)

    def known(self, stated: Any, literal: str) -> int:
        """Return a token id that a config states, else the id of a special token.

        Raises:
            ModelRefused: If there is neither.
        """
        found = self.tokenizer.control.get(literal) if stated is None else stated
        if not self._is_id(found) or found is None:
            raise ModelRefused(
                f"{self.source.title}: {literal} is not one of its tokens ({found}); fetch its files again"
            )
        return int(found)

    def listed(self, field: str) -> tuple[int, ...]:
        """Return the token ids of a list in the config; none if there is no list."""
        stated = self._stated(field) or []
        if not isinstance(stated, list) or not all(map(self._is_id, stated)):
            raise ModelRefused(f"{self.source.title}: {field} is not a list of token ids; fetch its files again")
        return tuple(stated)

    def languages(self, start: int, end: int) -> dict[str, int]:
        """Return the language tokens by code.

        If the config does not list them, they are the special tokens with ids between `start` and `end`.
        """
        stated = self.source.generation.get("lang_to_id")
        literals = stated if isinstance(stated, dict) else self.tokenizer.control
        found = {}
        for literal, token in literals.items():
            match = _LANGUAGE.fullmatch(literal)
            if match is not None and self._is_id(token) and (literals is stated or start < token < end):
                found[match[1]] = int(token)
        if not found:
            raise ModelRefused(f"{self.source.title}: none of its tokens is a language token; fetch its files again")
        return found

    def _stated(self, field: str) -> Any:
        """Return the value of a field in generation_config.json, else in config.json."""
        stated = self.source.generation.get(field)
        return self.source.config.values.get(field) if stated is None else stated

    def _is_id(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocabulary
