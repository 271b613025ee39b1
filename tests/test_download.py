"""Downloads go on where they stopped, are checked before they are used, and say what to do by hand when they fail."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Result
from test_data import SHARED, Commands, bytes_of, needs_originals, refused

IMAGES = "train-images-idx3-ubyte.gz"
MNIST = [IMAGES, "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


class Place(ThreadingHTTPServer):
    """A server of files on this machine that can be told to misbehave, and notes what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []  # the file, and the range of it
        self.files: dict[str, bytes] = {}
        self.break_off: dict[str, list[int]] = {}  # after how many bytes each answer for a file ends; then no more
        self.ranges = True
        self.pause = 0.0  # seconds between pieces
        self.reply: bytes | None = None  # instead of HTTP

    @property
    def prefix(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/some/where"


class Handler(BaseHTTPRequestHandler):
    server: Place

    def handle_one_request(self) -> None:
        if self.server.reply is None:
            return super().handle_one_request()
        self.rfile.readline()
        self.wfile.write(self.server.reply)
        self.close_connection = True

    def do_GET(self) -> None:
        place, name, wanted = self.server, self.path.rpartition("/")[2], self.headers["Range"]
        place.asked.append((name, wanted))
        if name not in place.files:
            return self.send_error(404)
        content, begin = place.files[name], 0
        if wanted and place.ranges:
            begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        breaks = place.break_off.get(name, [])
        end = begin + breaks.pop(0) if breaks else len(content)
        with contextlib.suppress(OSError):  # whoever asked was killed
            for piece in range(begin, min(end, len(content)), 1 << 16):
                self.wfile.write(content[piece : min(piece + (1 << 16), end)])
                time.sleep(place.pause)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def place() -> Iterator[Place]:
    with Place() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    found = Commands()
    yield found
    found.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def get(commands: Commands, place: Place, cache: Path, tmp_path: Path) -> Callable[..., Result]:
    """``fbompi data get mnist`` from the server of this test."""

    def run(*words: Any, prefix: str = "", name: str = "mnist") -> Result:
        asked = ("data", "get", name, "--quiet", "--from", prefix or place.prefix, *words)
        return commands.wait(commands.start(*asked, cwd=tmp_path, cache=cache))

    return run


def originals(*names: str) -> dict[str, bytes]:
    return {name: (SHARED / "mnist" / name).read_bytes() for name in names}


@needs_originals
def test_a_download_goes_on_where_it_broke_off_and_is_not_repeated(get, place, cache, commands, tmp_path):
    place.files = originals(*MNIST)
    place.break_off = {IMAGES: [3_000_000, 1_000_000], MNIST[3]: [1000]}
    result = get()
    assert result.status == 0 and result.err == "" and result.out.startswith("mnist: 60,000 train"), result
    assert place.asked == [
        (IMAGES, None), (IMAGES, "bytes=3000000-"), (IMAGES, "bytes=4000000-"), (MNIST[1], None), (MNIST[2], None),
        (MNIST[3], None), (MNIST[3], "bytes=1000-"),
    ]  # fmt: skip
    assert [path.name for path in cache.iterdir()] == ["mnist.h5"], "what was downloaded is not kept twice"
    again = get("--json")
    assert again.status == 0 and json.loads(again.out)[0]["parts"] == {"train": 60_000, "test": 10_000}, again
    assert len(place.asked) == 7, "the second time nothing is asked for"
    checked = commands.wait(commands.start("data", "list", "--check", cwd=tmp_path, cache=cache))
    assert checked.status == 0, checked


@pytest.mark.slow
@needs_originals
def test_another_command_goes_on_with_what_came_before(get, place, cache):
    part, whole = cache / "downloads/mnist" / f"{IMAGES}.partial", originals(IMAGES)
    place.files, place.break_off = whole, {IMAGES: [2_000_000, 0]}
    refused(get(), IMAGES, "broke off", "by hand")
    assert part.read_bytes() == whole[IMAGES][:2_000_000]
    refused(get(), MNIST[1], "404")  # the first file is whole now, the second is not on the server
    assert place.asked[-2:] == [(IMAGES, "bytes=2000000-"), (MNIST[1], None)]
    refused(get(), MNIST[1], "404")
    assert place.asked[-1:] == [(MNIST[1], None)] and len(place.asked) == 5, "what has come whole is kept"


@pytest.mark.slow
@needs_originals
def test_a_place_without_ranges_begins_anew(get, place, cache):
    place.files, place.ranges, place.break_off = originals(IMAGES), False, {IMAGES: [2_000_000]}
    refused(get(), MNIST[1], "404")
    assert place.asked == [(IMAGES, None), (IMAGES, "bytes=2000000-"), (MNIST[1], None)]


@pytest.mark.slow
@needs_originals
def test_a_beginning_of_another_file_is_thrown_away(get, place, cache):
    place.files = originals(IMAGES)
    folder = cache / "downloads/mnist"
    for begun in (b"something else", bytes(len(place.files[IMAGES]) + 5)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{IMAGES}.partial").write_bytes(begun)
        refused(get(), MNIST[1], "404")
        assert place.asked[-3:] == [(IMAGES, f"bytes={len(begun)}-"), (IMAGES, None), (MNIST[1], None)]
        (folder / IMAGES).unlink()


def test_a_wrong_file_is_not_kept(get, place, cache):
    wrong = gzip.compress(b"another file of this name")
    place.files = {IMAGES: wrong, "cifar-10-binary.tar.gz": wrong, "images_background.zip": wrong}
    refused(get(), f"{IMAGES} cannot be downloaded", "gives a wrong file", "25 bytes", "47,040,016", "by hand")
    refused(get(name="cifar10"), "gives a wrong file", "not a tar archive")
    refused(get(name="omniglot"), "gives a wrong file", "not a zip archive")
    assert {Path(name).name for name in bytes_of(cache)} <= {"lock"}


def test_more_than_a_file_can_have_is_not_taken(get, place, cache):
    place.files = {IMAGES: bytes(10)}
    place.reply = b"HTTP/1.0 200 OK\r\nContent-Length: 99999999999\r\n\r\nxx"
    refused(get(), IMAGES, "99,999,999,999 bytes, more than the file can have")
    assert {Path(name).name for name in bytes_of(cache)} <= {"lock"}


@pytest.mark.parametrize("reply", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\n",
                                   b"HTTP/1.0 503 Busy\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])  # fmt: skip
def test_a_place_that_gives_nothing_sensible_is_named(get, place, reply):
    place.reply = reply
    refused(get(), f"{IMAGES} cannot be downloaded (http://127.0.0.1:{place.server_port}/some/where/: ", "by hand")


def test_without_a_network_one_line_says_what_to_do_by_hand(get, cache):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        prefix = f"http://127.0.0.1:{free.getsockname()[1]}/"
    result = get(prefix=prefix)
    refused(result, prefix, "Connection refused", "by hand", *MNIST, "then fbompi data import PATH")


@pytest.mark.parametrize("prefix", ["/some/where", "mirror.example.org", "ftp://127.0.0.1/", "http://[", "http://",
                                    "http://127.0.0.1:port/", "file:///no/such/directory/"])  # fmt: skip
def test_an_address_that_cannot_be_one_is_told(get, prefix):
    refused(get(prefix=prefix), prefix)


def test_only_known_sets_can_be_downloaded(get, place):
    refused(get(name="minst"), '"minst"', 'did you mean "mnist"')
    assert place.asked == []


def test_two_downloads_of_a_set_at_once_do_not_mix(get, place, commands, cache, tmp_path):
    place.files, place.pause = {IMAGES: bytes(1 << 20)}, 0.02
    words = ("data", "get", "mnist", "--quiet", "--from", place.prefix)
    first = commands.start(*words, cwd=tmp_path, cache=cache)
    deadline = time.monotonic() + 20
    while not place.asked and time.monotonic() < deadline:
        time.sleep(0.001)
    refused(get(), "is being downloaded by another process")
    refused(commands.wait(first), "gives a wrong file")
    assert len(place.asked) == 1


@pytest.mark.slow
@needs_originals
def test_a_download_killed_at_any_moment_goes_on(get, place, commands, cache, tmp_path):
    place.files, place.pause = originals(*MNIST), 0.005
    words = ("data", "get", "mnist", "--quiet", "--from", place.prefix)
    for seconds in (0.1, 0.3, 0.3, 0.3):
        pid = commands.start(*words, cwd=tmp_path, cache=cache)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        assert commands.wait(pid).status == -signal.SIGKILL
    assert get().status == 0
    assert [path.name for path in cache.iterdir()] == ["mnist.h5"]
    begins = [int(wanted[6:-1]) for name, wanted in place.asked if name == IMAGES and wanted]
    assert begins == sorted(begins) and len(begins) >= 3, place.asked
