"""Archives that are hostile or damaged are refused in one line and little memory."""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from dpfedbench.data.mnist import read_idx
from dpfedbench.data.omniglot import read_omniglot
from dpfedbench.data.shakespeare import read_shakespeare
from dpfedbench.data.sources import Copy, Source, decoded_image
from dpfedbench.data.tiny_imagenet import read_tiny_imagenet
from dpfedbench.data.wiki import read_wiki
from dpfedbench.errors import BenchError

from .conftest import refusal

ZEROS = bytes(1 << 20)
Read = Callable[..., object]
DRAWING = "images_background/A/character01/0001_01.png"
ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"
ZIPS: dict[str, tuple[Read, str, str]] = {
    "omniglot": (read_omniglot, "omniglot/images_background.zip", DRAWING),
    "tiny-imagenet": (
        read_tiny_imagenet,
        "tiny-imagenet/tiny-imagenet-200.zip",
        ANNOTATIONS,
    ),
    "shakespeare": (read_shakespeare, "shakespeare/plays.zip", "hamlet.txt"),
}


def write_zip(path: Path, member: str, megabytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(member, "w") as handle,
    ):
        for _ in range(megabytes):
            handle.write(ZEROS)


def encrypt(content: bytearray) -> None:
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(start) + flags] |= 1


def change_method(content: bytearray) -> None:
    for start, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", content, content.index(start) + method, 97)


def understate_size(content: bytearray) -> None:
    for start, size in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", content, content.index(start) + size, 10)


@pytest.mark.parametrize("name", ZIPS)
def test_zip_member_that_is_too_large_is_refused_unread(
    tmp_path: Path, name: str
) -> None:
    read, archive, member = ZIPS[name]
    write_zip(tmp_path / archive, member, 100)
    message = refusal(read, tmp_path, tmp_path / "download")
    assert f"{member} has {100 << 20:,} bytes, and at most" in message


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (encrypt, "is encrypted, password required"),
        (change_method, "compression method is not supported"),
        (understate_size, "Bad CRC-32"),
    ],
)
@pytest.mark.parametrize("name", ["tiny-imagenet", "shakespeare"])
def test_zip_that_cannot_be_unpacked_is_refused(
    tmp_path: Path, name: str, harm: Callable[[bytearray], None], message: str
) -> None:
    """A member is read up to its stated size only, so its checksum is wrong."""
    read, archive, member = ZIPS[name]
    write_zip(tmp_path / archive, member, 1)
    content = bytearray((tmp_path / archive).read_bytes())
    harm(content)
    (tmp_path / archive).write_bytes(content)
    assert message in refusal(read, tmp_path, tmp_path / "download")


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_tar_member_that_is_too_large_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "wiki-3029.tar.gz", {"A.txt": bytes(65 << 20)})
    message = refusal(read_wiki, tmp_path, tmp_path)
    assert "it holds more than 67,108,864 bytes" in message


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
def test_archive_that_is_too_large_in_all_is_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"set.{form}"
    members = dict.fromkeys("ab", bytes(700))
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        write_tar(path, members)
    files = Copy(Source(name="the set", largest=700, total=1400), path).files
    assert {name: read() for name, read in files.items()} == members
    with pytest.raises(BenchError, match=r"more than [\d,]+ bytes, the most that"):
        _ = Copy(Source(name="the set", largest=700, total=1399), path).files


def test_gzip_bomb_takes_no_memory(tmp_path: Path) -> None:
    """A valid header is followed by 256 MiB of zeros."""
    with gzip.open(tmp_path / "bomb.gz", "wb", compresslevel=1) as handle:
        handle.write(b"\0\0\x08\x03" + struct.pack(">3I", 100, 28, 28))
        for _ in range(256):
            handle.write(ZEROS)
    tracemalloc.start()
    with pytest.raises(ValueError, match="it has 78401 bytes of values, not 78400"):
        read_idx(tmp_path / "bomb.gz", (100, 28, 28))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_picture_of_too_many_pixels_is_not_decoded() -> None:
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
    assert decoded_image(buffer.getvalue()).size == (8, 8)
