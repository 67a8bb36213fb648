"""By-products in folders, texts and archives are no data: hidden files, resource forks,
links, names that cannot be printed, and pixels of more than 8 bits.
"""

import io
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import image_folder, text_folder
from dpfedbench.data.folder_files import data_files, is_by_product
from dpfedbench.data.sources import Copy, Source, decoded_image

from .conftest import refusal, write_files

SOURCE = Source(
    name="some",
    folders=("some",),
    largest=1000,
    total=10_000,
)


def write_pictures(folder, count=3, value=10):
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        Image.new("L", (8, 8), value + index).save(folder / f"{index}.png")


@pytest.fixture
def pictures(tmp_path):
    write_pictures(tmp_path / "shapes/a")
    write_pictures(tmp_path / "shapes/b", value=50)
    return tmp_path


def read(local, **changes):
    options = {
        "folder": "shapes",
        "size": 8,
        "channels": 1,
        "test_images": 1,
    }
    return image_folder.read(local, Path(), None, **options | changes)


def check_two_classes(raw):
    images = np.concatenate([raw.train_images, raw.test_images])
    assert sorted(images[:, 0, 0, 0].tolist()) == [10, 11, 12, 50, 51, 52]
    assert raw.class_names == ("a", "b")


@pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", ".git", "._a"])
def test_hidden_class_folder_is_left_out_with_a_notice(pictures, name, capsys):
    write_pictures(pictures / "shapes" / name, value=200)
    check_two_classes(read(pictures))
    assert f"left out {name} " in capsys.readouterr().err


@pytest.mark.parametrize("name", [".ipynb_checkpoints/3.png", "._0.png", "c/.x/9.png"])
def test_hidden_pictures_of_a_class_are_left_out(pictures, name, capsys):
    path = pictures / "shapes/a" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), 200).save(path)
    check_two_classes(read(pictures))
    assert "notice: " in capsys.readouterr().err


def test_links_in_a_folder_are_left_out(pictures, capsys):
    """A picture is counted once, and a loop of links ends. The folder itself may be a
    link.
    """
    shapes = pictures / "shapes"
    write_pictures(pictures / "elsewhere", value=200)
    (shapes / "a/back").symlink_to(shapes)
    (shapes / "c").symlink_to(pictures / "elsewhere")
    (shapes / "a/again.png").symlink_to(shapes / "a/0.png")
    (shapes / "b/out.png").symlink_to(pictures / "elsewhere/0.png")
    (shapes / "b/nowhere.png").symlink_to(pictures / "nothing")
    (pictures / "linked").symlink_to(shapes)
    for folder in ("shapes", "linked"):
        check_two_classes(read(pictures, folder=folder))
        assert "and 2 more" in capsys.readouterr().err


@pytest.mark.parametrize("name", [b"caf\xe9", b"two\nlines", b"bell\x07"])
def test_name_that_cannot_be_printed_is_refused(pictures, name):
    shapes = os.fsencode(pictures / "shapes")
    os.rename(shapes + b"/b", shapes + b"/" + name)
    message = refusal(read, pictures)
    assert "an unprintable name" in message
    assert message.isascii()


def png(depth, colour):
    """Encode a 16-bit PNG of 8x8 pixels, which Pillow cannot write in colour."""
    samples = {
        0: 1,
        2: 3,
        4: 2,
        6: 4,
    }[colour]
    row = b"\0" + bytes([1]) * (8 * samples * depth // 8)

    def chunk(kind, content):
        length = struct.pack(">I", len(content))
        return length + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 8, 8, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * 8))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def float_tiff():
    handle = io.BytesIO()
    Image.new("F", (8, 8)).save(handle, "TIFF")
    return handle.getvalue()


DEEP = {
    "grey.png": png(16, 0),
    "colour.png": png(16, 2),
    "grey-alpha.png": png(16, 4),
    "alpha.png": png(16, 6),
    "colour.ppm": b"P6\n8 8\n65535\n" + bytes(384),
    "grey.pgm": b"P5\n8 8\n65535\n" + bytes(128),
    "float.tiff": float_tiff(),
}


@pytest.mark.parametrize("name", DEEP)
def test_pixels_of_more_than_8_bits_are_refused(pictures, name):
    with pytest.raises(ValueError, match="not of 8 bits"):
        decoded_image(DEEP[name])
    if name != "float.tiff":
        (pictures / "shapes/a" / name).write_bytes(DEEP[name])
        for channels in (1, 3):
            assert "not of 8 bits" in refusal(read, pictures, channels=channels)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "BMP", "WEBP", "JPEG", "GIF"])
def test_pixels_of_8_bits_are_decoded(mode, kind):
    handle = io.BytesIO()
    try:
        Image.new(mode, (8, 8)).save(handle, kind)
    except (OSError, KeyError, ValueError):
        pytest.skip("Pillow writes no such file")
    assert decoded_image(handle.getvalue()).size == (8, 8)


def test_hidden_texts_and_links_are_left_out(tmp_path, capsys):
    names = [f"author{index:02}" for index in range(30)]
    folder = write_files(
        tmp_path / "texts", {f"{name}.txt": b"a b c d e" for name in names}
    )
    write_files(folder, dict.fromkeys(("._author00.txt", ".hidden.txt"), b"\0\xff"))
    (folder / "twice.txt").symlink_to(folder / "author00.txt")
    raw = text_folder.read(tmp_path, Path(), None, folder="texts", words=5)
    assert sorted(name for name, _ in raw.tasks) == names
    assert "notice: " in capsys.readouterr().err


def write_zip(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"1")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "a/1.png")


def write_tar(path, names):
    with tarfile.open(path, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"1"))
        link = tarfile.TarInfo("link")
        link.type = tarfile.SYMTYPE
        link.linkname = "a/1.png"
        archive.addfile(link)


@pytest.mark.parametrize(
    ("write", "name"), [(write_zip, "x.zip"), (write_tar, "x.tar")]
)
def test_by_products_in_an_archive_are_left_out(tmp_path, write, name, capsys):
    names = ["a/1.png", "__MACOSX/a/._1.png", "a/._1.png", ".x/1.png", "../1.png"]
    write(tmp_path / name, names)
    assert list(Copy(SOURCE, tmp_path / name).files) == ["a/1.png"]
    assert "notice: " in capsys.readouterr().err


def test_by_products_in_a_folder_of_a_published_set_are_left_out(tmp_path):
    names = ("a/1.png", "a/._1.png", "__MACOSX/1.png", ".cache/1.png")
    write_files(tmp_path, dict.fromkeys(names, b"1"))
    (tmp_path / "a/2.png").symlink_to(tmp_path / "a/1.png")
    assert list(Copy(SOURCE, tmp_path).files) == ["a/1.png"]
    assert data_files(tmp_path) == [tmp_path / "a/1.png"]
    for path in ("./a/1.png", "a/1.png", "a.b/c..png"):
        assert not is_by_product(path)
