"""Run a case: its commands in a folder of their own, its server and what that is asked."""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from same_output_cases import Case

METHODS = ("GET", "POST", "DELETE", "OPTIONS", "HEAD")
READY_SECONDS = 90.0
"""The seconds that a server may take until it says its address."""


@dataclass(frozen=True)
class Place:
    """A temporary folder in which nothing of the user's machine is seen. source: the package that is run."""

    root: Path
    source: Path

    @property
    def inputs(self) -> Path:
        """The folder whose files lie in the working directory of every case."""
        return self.root / "inputs"

    def environment(self, *, calibrated: bool = True) -> dict[str, str]:
        """Return all environment variables of a command."""
        home = self.root / ("home" if calibrated else "bare-home")
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        own = {
            "PYTHONPATH": self.source.parent,
            "HOME": home,
            "TMPDIR": home / "tmp",
            "RIDGELINE_CACHE": home / "cache",
        }
        fixed = {"LANG": "C.UTF-8", "TZ": "UTC", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        fixed["PYTHONHASHSEED"] = "0"  # Starlette's `allow` header lists a set
        return kept | {name: str(path) for name, path in own.items()} | fixed


def run_case(place: Place, case: Case, kept: Path) -> None:
    """Run a case, and keep what it says in a folder: for each command NUMBER.out, NUMBER.err and NUMBER.code."""
    work = place.root / "work" / case.name
    shutil.copytree(place.inputs, work)
    kept.mkdir()
    if case.asks:
        _serve(place, case, work, kept)
    else:
        for number, line in enumerate(case.run, 1):
            _keep(kept, f"{number}", line, *_ended(place, case, line, work))
    for name in case.files:
        if (work / name).exists():
            (kept / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(work / name, kept / "files" / name)
    shutil.rmtree(work)


def _command(line: str) -> list[str]:
    return [sys.executable, "-m", "ridgeline", *shlex.split(line)]


def _keep(kept: Path, name: str, line: str, out: bytes, err: bytes, code: str) -> None:
    (kept / f"{name}.out").write_bytes(out)
    (kept / f"{name}.err").write_bytes(err)
    (kept / f"{name}.code").write_text(f"{code}\nridgeline {line}\n", encoding="utf-8")


def _ended(place: Place, case: Case, line: str, work: Path) -> tuple[bytes, bytes, str]:
    """Return what a command wrote to stdout and stderr, and its exit code or that it had to be ended."""
    process = subprocess.Popen(
        _command(line), cwd=work, env=place.environment(calibrated=case.calibrated), start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(case.stdin.encode(), timeout=case.limit)
        return out, err, f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the session that it leads, its own processes too
        out, err = process.communicate()
        return out, err, f"ended after {case.limit:g} s"


def _serve(place: Place, case: Case, work: Path, kept: Path) -> None:
    """Start the server of a case, ask it in turn, and keep each response and what the server said."""
    with _started(place, case, work, kept) as url:
        for number, line in enumerate(case.asks, 1):
            if line.split()[0] in METHODS:
                (kept / f"ask-{number:02}.response").write_bytes(_response(url, line, case.limit))
            else:
                command = line.replace("{url}", url)
                _keep(kept, f"ask-{number:02}", command, *_ended(place, case, command, work))


@contextmanager
def _started(place: Place, case: Case, work: Path, kept: Path) -> Iterator[str]:
    """Start a server, and give its URL. At the end it gets SIGTERM, and its output is kept."""
    (line,) = case.run
    out, err = kept / "1.out", kept / "1.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            _command(line), cwd=work, env=place.environment(calibrated=case.calibrated), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        )  # fmt: skip
    said = ""
    try:
        until = time.monotonic() + READY_SECONDS
        while not (found := re.search(r"at (http://[\d.:]+?)(?:/v1|/?\s)", err.read_text(encoding="utf-8"))):
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError
            time.sleep(0.1)
        yield found[1]
    except (TimeoutError, OSError, http.client.HTTPException) as error:
        said = f"the server failed: {error!r}, after "
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            said += f"exit code {process.wait(60)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said += f"killed, exit code {process.wait()}"
        (kept / "1.code").write_text(f"{said}\nridgeline {line}\n", encoding="utf-8")


def _response(url: str, line: str, limit: float) -> bytes:
    """Ask a server, and return the request, the status, the headers and the body."""
    method, path, body = (*line.split(maxsplit=2), "")[:3]
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=limit)
    headers = {"content-type": "application/json"} if body else {}
    connection.request(method, path, body.encode() or None, headers)
    response = connection.getresponse()
    lines = [line, f"{response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.getheaders()]
    text = "\n".join((*lines, "", "")).encode() + response.read()
    connection.close()
    return text


def learnt_key(place: Place) -> dict[str, str]:
    """Return what a calibration of this machine and package depends on, as a first estimate of the machine says it."""
    command = _command("plan qwen3-0.6b --device this --short")
    subprocess.run(command, cwd=place.root, env=place.environment(), check=True, capture_output=True)
    cache = Path(place.environment()["RIDGELINE_CACHE"])
    (probe,) = cache.glob("probe-*.json")
    key: dict[str, str] = json.loads(probe.read_bytes())["key"]
    probe.unlink()
    return key
