"""The server's settings: the limits that are documented, and what makes no sense."""

import math

import pytest

from ridgeline.server.server_settings import ServerSettings, is_loopback


def test_the_defaults_are_the_documented_limits() -> None:
    """The table of limits in docs and /v1/models; a change here is a change that users see."""
    settings = ServerSettings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.public_limits() == {
        "choices": 8,
        "prompts": 32,
        "stops": 4,
        "stop_bytes": 256,
        "top_logprobs": 20,
        "logit_bias": 300,
        "messages": 1024,
        "tools": 128,
        "cache_salt_bytes": 256,
        "json_depth": 64,
        "body_bytes": 4 * 1024**2,
        "upload_bytes": 25 * 1024**2,
        "picture_bytes": 256 * 1024**2,
        "clip_bytes": 1024**3,
        "clip_seconds": 3600.0,
        "schema_bytes": 16 * 1024,
        "schema_depth": 32,
        "compile_seconds": 2.0,
        "headers": 100,
        "header_bytes": 32 * 1024,
        "header_seconds": 5.0,
        "body_seconds": 30.0,
        "idle_seconds": 60.0,
        "queue_seconds": 60.0,
        "total_seconds": 600.0,
        "send_buffer_bytes": 256 * 1024,
    }
    assert settings.template_bytes(4096) == 4 * 4096 * 8


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"port": 65536}, "65535"),
        ({"port": -1}, "port"),
        ({"choices": 0}, "choices"),
        ({"choices": 2**31}, "choices"),
        ({"total_seconds": math.nan}, "total_seconds"),
        ({"total_seconds": math.inf}, "total_seconds"),
        ({"header_seconds": 0.0}, "header_seconds"),
        ({"queued_tokens": -1}, "queued_tokens"),
        ({"keys": ("",)}, "^api_key is empty; give at least one printable character$"),
        ({"keys": ("a ",)}, "^api_key has spaces around it or unprintable characters; remove them$"),
        ({"keys": ("a b",)}, "another"),
        ({"keys": ("\u00e9",)}, "another"),
        ({"models": ("a\nb",)}, "^served_model_name has spaces"),
        ({"allowed_origins": ("example.com",)}, "http://host:port"),
        ({"allowed_origins": ("http://example.com/",)}, "http://host:port"),
        ({"allowed_origins": ("http://user@example.com",)}, "http://host:port"),
        ({"allowed_origins": ("HTTP://example.com",)}, "http://host:port"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as refused:
        ServerSettings(**given)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_beyond_loopback_only_with_a_key_or_insecure() -> None:
    with pytest.raises(ValueError, match=r"^host is '0\.0\.0\.0', which other machines can reach: .*--api-key-file"):
        ServerSettings(host="0.0.0.0")
    with pytest.raises(ValueError, match=r"^host is 'no\.invalid', which is not known to be this machine only: "):
        ServerSettings(host="no.invalid")
    assert ServerSettings(host="0.0.0.0", keys=("secret",)).host == "0.0.0.0"
    assert ServerSettings(host="0.0.0.0", insecure=True).host == "0.0.0.0"


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.evil.com"))


def test_keys_are_not_in_the_repr() -> None:
    assert "secret" not in repr(ServerSettings(keys=("secret",)))
