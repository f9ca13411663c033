"""Downloads, against real servers on this machine: whole, resumed, cut off, wrong and absent."""

from __future__ import annotations

import gzip
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from docom.data import DataError, read_mnist
from docom.data.catalogue import DOWNLOADS, Download
from docom.data.download import DownloadError, RemoteFile, fetch
from docom.data.store import get, locate

MNIST = Path(__file__).parents[2] / "shared/data/mnist"
CONTENT = np.random.default_rng(0).bytes(300_000)


def remote_file(name: str, content: bytes) -> RemoteFile:
    return RemoteFile(name, len(content), hashlib.sha256(content).hexdigest())


FILE = remote_file("file.bin", CONTENT)


class Server(ThreadingHTTPServer):
    """Serves `files`, and misbehaves as told."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.requests: list[tuple[str, str | None]] = []
        self.cut_after: int | None = None  # close each connection after so many bytes
        self.knows_ranges = True
        self.range_shift = 0  # answer with a range that was not asked for
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, asked = self.path.lstrip("/"), self.headers.get("Range")
        self.server.requests.append((name, asked))
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        start = 0
        if asked and self.server.knows_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + self.server.range_shift
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.cut_after])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({FILE.name: CONTENT}) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def nobody() -> str:
    """A URL at which no one listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/"


def test_whole_file_with_progress(server: Server, tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    path = fetch(FILE, [server.url], tmp_path / "new", lambda *call: calls.append(call))
    assert path.read_bytes() == CONTENT
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    assert calls[0] == (0, len(CONTENT), "file.bin")
    assert calls[-1] == (len(CONTENT), len(CONTENT), "file.bin")
    assert len(calls) > 3
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        fetch(FILE, [server.url], tmp_path)
    assert server.requests == [("file.bin", None)]
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1] + b"?")  # damaged since: fetched anew
    fetch(FILE, [server.url], tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("kept", [1, 100_000, 299_999])
def test_resumes_from_the_part_file(server: Server, tmp_path: Path, kept: int) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:kept])
    calls: list[int] = []
    fetch(FILE, [server.url], tmp_path, lambda done, total, name: calls.append(done))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.requests == [("file.bin", f"bytes={kept}-")]
    assert calls[0] == kept


def test_a_finished_part_file_needs_no_network(nobody: str, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(FILE, [nobody], tmp_path).read_bytes() == CONTENT


def test_connection_dropped_midway(server: Server, tmp_path: Path) -> None:
    server.cut_after = 120_000
    fetch(FILE, [server.url], tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=120000-", "bytes=240000-"]


def test_gives_up_and_keeps_what_came(server: Server, nobody: str, tmp_path: Path) -> None:
    server.cut_after = 1000
    with pytest.raises(DownloadError, match=r"5,000 of 300,000 bytes are kept") as error:
        fetch(FILE, [server.url, nobody], tmp_path)
    assert f"{server.url}file.bin: the connection closed after 5,000" in str(error.value)
    assert f"{nobody}file.bin: " in str(error.value)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:5000]
    assert not (tmp_path / "file.bin").exists()
    server.cut_after = None
    assert fetch(FILE, [server.url], tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("file.bin", "bytes=5000-")


def test_server_without_ranges(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    assert fetch(FILE, [server.url], tmp_path).read_bytes() == CONTENT


def test_server_with_another_range(server: Server, tmp_path: Path) -> None:
    server.range_shift = 7
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:10])
    with pytest.raises(DownloadError, match="answered with range bytes 17-"):
        fetch(FILE, [server.url], tmp_path)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:10]


def test_wrong_content_is_removed(server: Server, tmp_path: Path) -> None:
    server.files["file.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(DownloadError, match="published checksum"):
        fetch(FILE, [server.url], tmp_path)
    assert not list(tmp_path.iterdir())


def test_endless_content_is_cut(server: Server, tmp_path: Path) -> None:
    server.files["file.bin"] = CONTENT * 4
    with pytest.raises(DownloadError, match="sends more than the 300,000 bytes"):
        fetch(FILE, [server.url], tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size == 0


def test_useless_part_files(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert fetch(FILE, [server.url], tmp_path).read_bytes() == CONTENT
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(b"other bytes")
    # The first mirror completes a wrong beginning, which is found out; the second gives the file.
    assert fetch(FILE, [server.url, server.url], tmp_path).read_bytes() == CONTENT


def test_next_mirror(server: Server, nobody: str, tmp_path: Path) -> None:
    assert fetch(FILE, [nobody, server.url + "absent/", server.url], tmp_path).read_bytes() == CONTENT
    with pytest.raises(DownloadError, match=r"HTTP status 404 \(Not Found\)"):
        fetch(remote_file("other", b"1"), [server.url], tmp_path)


def small_mnist() -> dict[str, bytes]:
    files = {}
    for stem, count in (("train", 20), ("t10k", 10)):
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(i % 10 for i in range(count))
        files[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(images)
        files[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    return files


def test_get(server: Server, nobody: str, tmp_path: Path) -> None:
    server.files = small_mnist()
    plan = {"mnist": Download((nobody,), tuple(remote_file(*item) for item in server.files.items()))}
    home = tmp_path / "home"
    folder = get("mnist", home, downloads=plan, mirrors=[server.url])
    assert folder == locate("mnist", home) == home / "mnist"
    assert len(read_mnist(folder)[0][1]) == 20
    assert get("mnist", home, downloads=plan) == folder  # offline, but all is there


def test_get_offline_says_what_to_do(nobody: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as error:
        get("mnist", tmp_path, mirrors=[nobody])
    message = str(error.value)
    assert f"{nobody}train-images-idx3-ubyte.gz: " in message
    assert "refused" in message
    assert "docom data get mnist" in message
    assert "docom data add mnist --from DIR" in message


def test_get_of_what_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="docom data add femnist --from"):
        get("femnist", tmp_path)
    with pytest.raises(DataError, match="did you mean mnist"):
        get("mnits", tmp_path)


def test_get_the_published_files(server: Server, tmp_path: Path) -> None:
    if not MNIST.exists():
        pytest.skip("absent: MNIST (the four IDX files)")
    server.files = {path.name: path.read_bytes() for path in MNIST.glob("*.gz")}
    server.cut_after = 4_000_000
    folder = get("mnist", tmp_path, mirrors=[server.url])
    assert {path.name for path in folder.iterdir()} == {file.name for file in DOWNLOADS["mnist"].files}
    assert all((folder / name).read_bytes() == content for name, content in server.files.items())
