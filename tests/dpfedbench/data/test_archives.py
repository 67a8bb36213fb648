"""By-products in archives and folders, and pictures of too many pixels."""

import io
import struct
import tarfile
import zipfile
import zlib

import pytest
from PIL import Image

from dpfedbench.data.folder_files import data_files
from dpfedbench.data.sources import Copy, Source, decoded_image

from .conftest import write_files

SOURCE = Source(name="the set", folders=("set",))


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
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


def test_by_products_in_an_archive_are_left_out(make_archive):
    names = ["a/1.png", "__MACOSX/a/._1.png", "a/._1.png", ".x/1.png", "../1.png"]
    path = make_archive(dict.fromkeys(names, b"1"))
    copy = Copy(SOURCE, path)
    assert {name: copy.read(name) for name in copy.files} == {"a/1.png": b"1"}


def test_by_products_in_a_folder_of_a_published_set_are_left_out(tmp_path):
    names = ("a/1.png", "a/._1.png", "__MACOSX/1.png", ".cache/1.png")
    write_files(tmp_path, dict.fromkeys(names, b"1"))
    (tmp_path / "a/2.png").symlink_to(tmp_path / "a/1.png")
    assert list(Copy(SOURCE, tmp_path).files) == ["a/1.png"]
    assert data_files(tmp_path) == [tmp_path / "a/1.png"]


def test_picture_of_too_many_pixels_is_not_decoded():
    """The header of a small file states 400 million pixels."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    struct.pack_into(">2I", content, 16, 20_000, 20_000)
    struct.pack_into(">I", content, 29, zlib.crc32(bytes(content[12:29])))
    with pytest.raises(Image.DecompressionBombError):
        decoded_image(bytes(content))
    with pytest.raises(ValueError, match="8×8, not 105×105"):
        decoded_image(buffer.getvalue(), size=105)
