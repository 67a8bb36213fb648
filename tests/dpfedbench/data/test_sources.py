"""Local folders and archives, downloads with their checksums, and harmless pickles."""

import functools
import hashlib
import pickle
import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.data import sources

from .conftest import refusal, write_files, write_tar, write_zip

SET = sources.Source(
    name="the set", folders=("set",), parts={}, check="", downloaded=True
)
MD5 = hashlib.md5(b"published", usedforsecurity=False).hexdigest()


def test_local_folder_is_the_configured_one_before_the_environments(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path))
    assert sources.local_folder(tmp_path.parent) == tmp_path.parent
    assert sources.local_folder(None) == tmp_path
    monkeypatch.setenv(sources.ENVIRONMENT, str(tmp_path / "missing"))
    assert "missing does not exist" in refusal(sources.local_folder, None)


@pytest.mark.parametrize(
    ("write", "file"), [(write_zip, "set.zip"), (write_tar, "set.tar.gz")]
)
def test_by_products_in_archives_are_left_out(tmp_path, write, file):
    """Files of the operating system: an image twice could be in two splits."""
    names = ("a/1.png", "__MACOSX/a/._1.png", "a/._1.png", ".x/1.png")
    copy = sources.Copy(SET, write(tmp_path / file, dict.fromkeys(names, b"1")))
    assert {name: copy.read(name) for name in copy.files} == {"a/1.png": b"1"}


@pytest.fixture
def url(tmp_path):
    """Serve the folder `site` on this machine; return the address of its set.zip."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "site")
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/set.zip"
        server.shutdown()
        thread.join()


def test_fetch_keeps_a_download_with_the_published_checksum_alone(tmp_path, url):
    site = write_files(tmp_path / "site", {"set.zip": b"another"})
    download = write_files(tmp_path / "download", {"set.zip": b"half a download"})
    message = refusal(SET.fetch, url, MD5, download)
    assert "with the published checksum" in message
    assert not list(download.iterdir())
    (site / "set.zip").write_bytes(b"published")
    copy = SET.fetch(url, MD5, download)
    assert copy.path.read_bytes() == b"published"
    (site / "set.zip").unlink()
    assert SET.fetch(url, MD5, download) == copy


class Harmful:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_read_pickle_reads_arrays_of_every_protocol_and_runs_no_code(
    tmp_path, monkeypatch
):
    images = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = {"image_data": images, "class_dict": {"n01": [0, np.int64(2)]}}
    path = tmp_path / "set.pkl"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        values = sources.read_pickle(path)
        assert np.array_equal(values["image_data"], images)
        assert values["class_dict"] == content["class_dict"]
    monkeypatch.chdir(tmp_path)
    path.write_bytes(pickle.dumps({"image_data": Harmful()}))
    with pytest.raises(pickle.UnpicklingError, match="is not an array"):
        sources.read_pickle(path)
    assert not (tmp_path / "harm").exists()
