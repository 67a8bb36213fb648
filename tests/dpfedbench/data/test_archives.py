"""Archives that are hostile, or that Python cannot unpack: one line, and no memory for
what they pretend to hold.
"""

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

ZEROS = bytes(1 << 20)
Read = Callable[..., object]
ZIPS: list[tuple[Read, str, str]] = [
    (
        read_omniglot,
        "omniglot/images_background.zip",
        "images_background/A/character01/0001_01.png",
    ),
    (
        read_tiny_imagenet,
        "tiny-imagenet/tiny-imagenet-200.zip",
        "tiny-imagenet-200/val/val_annotations.txt",
    ),
    (read_shakespeare, "shakespeare/plays.zip", "hamlet.txt"),
]


def zipped(path: Path, member: str, megabytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(member, "w") as handle,
    ):
        for _ in range(megabytes):
            handle.write(ZEROS)


def encrypted(content: bytearray) -> None:
    for start, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(start) + flags] |= 1


def strange(content: bytearray) -> None:
    for start, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", content, content.index(start) + method, 97)


def understated(content: bytearray) -> None:
    for start, size in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", content, content.index(start) + size, 10)


def refused(read: Read, local: Path) -> str:
    with pytest.raises(BenchError) as caught:
        read(local, local / "download")
    assert "\n" not in str(caught.value) and "(None)" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("read", "archive", "member"),
    ZIPS,
    ids=["omniglot", "tiny-imagenet", "shakespeare"],
)
@pytest.mark.parametrize("megabytes", [100])
def test_a_file_that_is_too_large_is_refused_unread(
    tmp_path: Path, read: Read, archive: str, member: str, megabytes: int
) -> None:
    zipped(tmp_path / archive, member, megabytes)
    said = refused(read, tmp_path)
    assert (
        archive in said
        and f"{member} has {megabytes << 20:,} bytes, and at most" in said
        and "delete it" in said
    )


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (encrypted, "is encrypted, password required"),
        (strange, "compression method is not supported"),
        (understated, "Bad CRC-32"),
    ],
)
@pytest.mark.parametrize(
    ("read", "archive", "member"), ZIPS[1:], ids=["tiny-imagenet", "shakespeare"]
)
def test_a_zip_that_cannot_be_unpacked_is_one_line(
    tmp_path: Path,
    read: Read,
    archive: str,
    member: str,
    harm: Callable[[bytearray], None],
    what: str,
) -> None:
    """What says that it holds less than it does is not read beyond that, and its
    checksum is wrong.
    """
    zipped(tmp_path / archive, member, 1)
    content = bytearray((tmp_path / archive).read_bytes())
    harm(content)
    (tmp_path / archive).write_bytes(content)
    assert what in refused(read, tmp_path)


def test_a_tar_of_articles_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "wiki-3029.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("A.txt")
        member.size = 65 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    said = refused(read_wiki, tmp_path)
    assert (
        "it holds more than the 67,108,864 bytes that are possible" in said
        and "wiki-3029.tar.gz" in said
    )


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
def test_files_that_are_too_large_together_are_refused(
    tmp_path: Path, form: str
) -> None:
    path, each = tmp_path / f"set.{form}", bytes(700)
    if form == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name in "ab":
                packed.writestr(name, each)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name in "ab":
                member = tarfile.TarInfo(name)
                member.size = len(each)
                archive.addfile(member, io.BytesIO(each))
    fits = Copy(Source(name="the set", largest=700, total=1400), path).files
    assert {name: read() for name, read in fits.items()} == {"a": each, "b": each}
    with pytest.raises(
        BenchError,
        match=(
            r"is damaged or not the set's \(it.* more than the [\d,]+ bytes that are"
            r" poss"
        ),
    ):
        _ = Copy(Source(name="the set", largest=700, total=1399), path).files


def test_a_gzip_bomb_takes_no_memory(tmp_path: Path) -> None:
    """256 MiB of zeros behind a head that fits."""
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
    with gzip.open(tmp_path / "fits.gz", "wb") as handle:
        handle.write(b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc")
    assert read_idx(tmp_path / "fits.gz", (3,)).tobytes() == b"abc"


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    """A picture's head says its size: 400 million pixels in some bytes."""
    good = io.BytesIO()
    Image.new("L", (8, 8)).save(good, "PNG")
    content = bytearray(good.getvalue())
    struct.pack_into(">2I", content, 16, 20_000, 20_000)
    struct.pack_into(">I", content, 29, zlib.crc32(bytes(content[12:29])))
    with pytest.raises(
        ValueError, match=r"20000×20000, not 105×105|decompression bomb"
    ):
        decoded_image(bytes(content), size=105)
    with pytest.raises(ValueError, match="decompression bomb"):
        decoded_image(bytes(content))
    with pytest.raises(ValueError, match="8×8, not 105×105"):
        decoded_image(good.getvalue(), size=105)
    assert decoded_image(good.getvalue()).size == (8, 8)
