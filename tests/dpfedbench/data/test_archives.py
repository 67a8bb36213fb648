"""By-products in archives and folders, and pictures of too many pixels."""

import io
import struct
import zlib

import pytest
from PIL import Image

from dpfedbench.data.folder_files import data_files
from dpfedbench.data.sources import Copy, Source, decoded_image

from .conftest import write_files, write_tar, write_zip

SOURCE = Source(name="the set", folders=("set",))


@pytest.mark.parametrize(
    ("write", "file"), [(write_zip, "set.zip"), (write_tar, "set.tar.gz")]
)
def test_by_products_in_an_archive_are_left_out(tmp_path, write, file):
    names = ["a/1.png", "__MACOSX/a/._1.png", "a/._1.png", ".x/1.png", "../1.png"]
    copy = Copy(SOURCE, write(tmp_path / file, dict.fromkeys(names, b"1")))
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
