"""Archives: by-products in them, and hostile or damaged ones, refused in one line and
little memory.
"""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import pytest
from PIL import Image

from dpfedbench.data.folder_files import data_files
from dpfedbench.data.mnist import read_idx
from dpfedbench.data.sources import Copy, Source, decoded_image
from dpfedbench.errors import BenchError

from .conftest import write_files

SOURCE = Source(name="the set", largest=700, total=1400)


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "a/1.png")
    return path


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type = tarfile.SYMTYPE
        link.linkname = "a/1.png"
        archive.addfile(link)
    return path


@pytest.fixture(params=[(write_zip, "set.zip"), (write_tar, "set.tar.gz")])
def make_archive(request, tmp_path):
    write, name = request.param
    return lambda members: write(tmp_path / name, members)


def test_by_products_in_an_archive_are_left_out(make_archive, capsys):
    names = ["a/1.png", "__MACOSX/a/._1.png", "a/._1.png", ".x/1.png", "../1.png"]
    path = make_archive(dict.fromkeys(names, b"1"))
    assert list(Copy(SOURCE, path).files) == ["a/1.png"]
    assert "notice: " in capsys.readouterr().err


def test_by_products_in_a_folder_of_a_published_set_are_left_out(tmp_path):
    names = ("a/1.png", "a/._1.png", "__MACOSX/1.png", ".cache/1.png")
    write_files(tmp_path, dict.fromkeys(names, b"1"))
    (tmp_path / "a/2.png").symlink_to(tmp_path / "a/1.png")
    assert list(Copy(SOURCE, tmp_path).files) == ["a/1.png"]
    assert data_files(tmp_path) == [tmp_path / "a/1.png"]


def test_member_or_archive_that_is_too_large_is_refused(make_archive):
    members = dict.fromkeys("ab", bytes(700))
    path = make_archive(members)
    files = Copy(SOURCE, path).files
    assert {name: read() for name, read in files.items()} == members
    for source in (
        Source(name="the set", largest=699, total=1400),
        Source(name="the set", largest=700, total=1399),
    ):
        with pytest.raises(BenchError, match="bytes"):
            _ = Copy(source, path).files


def test_gzip_bomb_takes_no_memory(tmp_path):
    """A valid header is followed by 256 MiB of zeros."""
    with gzip.open(tmp_path / "bomb.gz", "wb", compresslevel=1) as handle:
        handle.write(b"\0\0\x08\x03" + struct.pack(">3I", 100, 28, 28))
        for _ in range(256):
            handle.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="it has 78401 bytes of values, not 78400"):
        read_idx(tmp_path / "bomb.gz", (100, 28, 28))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_picture_of_too_many_pixels_is_not_decoded():
    """The header of a small file states 400 million pixels."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    struct.pack_into(">2I", content, 16, 20_000, 20_000)
    struct.pack_into(">I", content, 29, zlib.crc32(bytes(content[12:29])))
    with pytest.raises(ValueError, match="decompression bomb"):
        decoded_image(bytes(content))
    with pytest.raises(ValueError, match="8×8, not 105×105"):
        decoded_image(buffer.getvalue(), size=105)
