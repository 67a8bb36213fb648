"""Local folders, downloads with their checksums, and pickles that may not run code."""

import hashlib
import pickle
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.data import sources

from .conftest import refusal

SET = sources.Source(name="the set", folders=("omniglot",))
MD5 = hashlib.md5(b"published", usedforsecurity=False).hexdigest()


def test_local_folder_is_the_configured_one_before_the_environments(
    tmp_path, monkeypatch
):
    for name in ("configured", "environment"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "environment"))
    assert sources.local_folder(tmp_path / "configured") == tmp_path / "configured"
    assert sources.local_folder(None) == tmp_path / "environment"
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "missing"))
    assert "missing does not exist" in refusal(sources.local_folder, None)
    monkeypatch.delenv(sources.ENVIRONMENT)
    assert sources.local_folder(None) is None


@pytest.fixture
def published():
    """Serve set.zip on this machine; return its address and the list of requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body):
            requests.append(self.path)
            length = len(b"published") + ("short" in self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self):
            self.answer(b"")

        def do_GET(self):
            self.answer(b"published")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/set.zip", requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_checks_a_download_and_keeps_it(tmp_path, published):
    url, requests = published
    (tmp_path / "set.zip").write_bytes(b"publ")  # half a download
    copy = SET.fetch(url, MD5, tmp_path, None)
    assert copy.path.read_bytes() == b"published"
    before = len(requests)
    assert SET.fetch(url, MD5, tmp_path, None) == copy
    assert len(requests) == before


@pytest.mark.parametrize(
    ("file", "message"),
    [("short.zip", "short.zip"), ("set.zip", "not have the published checksum")],
)
def test_fetch_keeps_nothing_that_is_short_or_has_another_checksum(
    tmp_path, published, file, message
):
    url = published[0].replace("set.zip", file)
    assert message in refusal(SET.fetch, url, "0" * 32, tmp_path / "download", None)
    assert not list((tmp_path / "download").iterdir())


def test_read_pickle_reads_arrays_of_every_protocol(tmp_path):
    images = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = {"image_data": images, "class_dict": {"n01": [0, np.int64(2)]}}
    path = tmp_path / "set.pkl"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        values = sources.read_pickle(path)
        assert np.array_equal(values["image_data"], images)
        assert values["class_dict"] == content["class_dict"]


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_read_pickle_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "set.pkl"
    path.write_bytes(pickle.dumps({"image_data": Harmful()}))
    with pytest.raises(pickle.UnpicklingError, match="is not an array"):
        sources.read_pickle(path)
    assert not (tmp_path / "harm").exists()
