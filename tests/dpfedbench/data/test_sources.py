"""Local folders, downloads with their checksums, and pickles that may not run code."""

import hashlib
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from dpfedbench.data import sources
from dpfedbench.errors import BenchError


def test_the_named_folder_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "environment").mkdir()
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "environment"))
    assert sources.local_folder(tmp_path / "named") == tmp_path / "named"
    assert sources.local_folder(None) == tmp_path / "environment"
    monkeypatch.delenv(sources.ENVIRONMENT)
    assert sources.local_folder(None) is None


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "gone"))
    with pytest.raises(
        BenchError,
        match=r"gone is not there: correct data\.local_dir or DPFEDBENCH_DATA",
    ):
        sources.local_folder(None)


SET = sources.Source(name="the set", folders=("omniglot",))
MD5 = hashlib.md5(b"published", usedforsecurity=False).hexdigest()


@pytest.fixture
def published() -> Iterator[tuple[str, list[str]]]:
    """The address of set.zip on a server of this machine, and the requests that it
    got.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, body: bytes) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header(
                "Content-Length", str(len(b"published") + ("short" in self.path))
            )
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(b"published")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/set.zip", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_checked_and_kept(
    tmp_path: Path, published: tuple[str, list[str]]
) -> None:
    url, asked = published
    copy = SET.fetch(url, MD5, tmp_path / "download", None)
    assert copy.path.read_bytes() == b"published"
    before = len(asked)
    assert SET.fetch(url, MD5, tmp_path / "download", None) == copy
    assert len(asked) == before


def test_half_a_download_is_fetched_again(
    tmp_path: Path, published: tuple[str, list[str]]
) -> None:
    (tmp_path / "set.zip").write_bytes(b"publ")
    copy = SET.fetch(published[0], MD5, tmp_path, None)
    assert copy.path.read_bytes() == b"published"


def test_a_download_cut_short_leaves_nothing(
    tmp_path: Path, published: tuple[str, list[str]]
) -> None:
    url = published[0].replace("set.zip", "short.zip")
    with pytest.raises(BenchError, match=r"short\.zip"):
        SET.fetch(url, "0" * 32, tmp_path / "download", None)
    assert not list((tmp_path / "download").iterdir())


def test_a_wrong_checksum_leaves_nothing(
    tmp_path: Path, published: tuple[str, list[str]]
) -> None:
    url, _ = published
    with pytest.raises(
        BenchError,
        match=r"set\.zip .* does not have the published checksum .* put it in F",
    ):
        SET.fetch(url, "0" * 32, tmp_path / "download", None)
    assert not list((tmp_path / "download").iterdir())


@pytest.mark.parametrize("local", [None, "local"])
def test_without_a_network_the_message_names_file_place_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str | None
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    folder = tmp_path / local if local else None
    with pytest.raises(BenchError) as caught:
        SET.fetch("https://example.org/set.zip", "0" * 32, tmp_path / "d", folder)
    message = str(caught.value)
    place = (
        f"{folder}/omniglot"
        if folder
        else "FOLDER/omniglot with data.local_dir (or DPFEDBENCH_DATA)"
    )
    assert (
        "set.zip" in message
        and "https://example.org/set.zip" in message
        and place in message
    )
    assert "\n" not in message


def test_pickled_arrays_are_read_in_every_protocol(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "image_data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "class_dict": {"n01": [0, np.int64(2)]},
    }
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "set.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
        read = sources.read_pickle(tmp_path / "set.pkl", "set.pkl")
        assert np.array_equal(read["image_data"], content["image_data"])
        assert read["class_dict"] == content["class_dict"]


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("evil"),)  # type: ignore[return-value]


def test_a_pickle_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.pkl").write_bytes(pickle.dumps({"image_data": _Evil()}))
    with pytest.raises(
        BenchError, match=r"set\.pkl cannot be read as a pickle of arrays .*delete it"
    ):
        sources.read_pickle(tmp_path / "set.pkl", "set.pkl")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2])[:-1]])
def test_a_damaged_pickle_is_refused(content: bytes) -> None:
    with pytest.raises(BenchError, match="cannot be read as a pickle"):
        sources.read_pickle(content, "set.pkl")
