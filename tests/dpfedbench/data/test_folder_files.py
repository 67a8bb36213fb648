"""What is no data: hidden files and folders, resource forks, links, names that cannot
be printed, and pixels of more than 8 bits; in folders, texts and archives.
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
from dpfedbench.errors import BenchError

HIDDEN = (".ipynb_checkpoints", "__MACOSX", ".git", "._a")
SOURCE = Source(name="some", folders=("some",), largest=1000, total=10_000)


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
    options = {"folder": "shapes", "size": 8, "channels": 1, "test_images": 1}
    return image_folder.read(local, Path(), None, **options | changes)


def values(raw):
    images = np.concatenate([raw.train_images, raw.test_images])
    return sorted(images[:, 0, 0, 0].tolist())


DATA = [10, 11, 12, 50, 51, 52]


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_class_folder_is_left_out_with_a_notice(pictures, name, capsys):
    write_pictures(pictures / "shapes" / name, value=200)
    raw = read(pictures)
    assert raw.class_names == ("a", "b") and values(raw) == DATA
    assert f"left out {name} " in capsys.readouterr().err


@pytest.mark.parametrize("name", [".ipynb_checkpoints/3.png", "._0.png", "c/.x/9.png"])
def test_hidden_pictures_of_a_class_are_left_out(pictures, name, capsys):
    path = pictures / "shapes/a" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), 200).save(path)
    assert values(read(pictures)) == DATA
    assert "notice: " in capsys.readouterr().err


def test_links_back_outside_and_inside_are_left_out(pictures, capsys):
    """None is followed: a picture is counted once, and a loop ends."""
    shapes = pictures / "shapes"
    write_pictures(pictures / "elsewhere", value=200)
    (shapes / "a/back").symlink_to(shapes)
    (shapes / "c").symlink_to(pictures / "elsewhere")
    (shapes / "a/again.png").symlink_to(shapes / "a/0.png")
    (shapes / "b/out.png").symlink_to(pictures / "elsewhere/0.png")
    (shapes / "b/nowhere.png").symlink_to(pictures / "nothing")
    raw = read(pictures)
    assert raw.class_names == ("a", "b") and values(raw) == DATA
    assert "and 2 more" in capsys.readouterr().err


def test_folder_that_is_itself_a_link_is_read(pictures):
    (pictures / "linked").symlink_to(pictures / "shapes")
    assert values(read(pictures, folder="linked")) == DATA


@pytest.mark.parametrize("name", [b"caf\xe9", b"two\nlines", b"bell\x07"])
def test_name_that_cannot_be_printed_is_refused(pictures, name):
    os.rename(
        os.fsencode(pictures / "shapes/b"),
        os.fsencode(pictures / "shapes") + b"/" + name,
    )
    with pytest.raises(BenchError, match="name cannot be printed") as caught:
        read(pictures)
    str(caught.value).encode("ascii")
    assert "\n" not in str(caught.value)


def png(depth, colour):
    """A 16-bit PNG of 8x8 pixels, written by hand: Pillow writes none in colour."""
    samples = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    row = b"\0" + bytes([1]) * (8 * samples * depth // 8)

    def chunk(kind, content):
        check = zlib.crc32(kind + content)
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
        )

    head = struct.pack(">IIBBBBB", 8, 8, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * 8))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


DEEP = {
    "grey.png": png(16, 0),
    "colour.png": png(16, 2),
    "grey-alpha.png": png(16, 4),
    "alpha.png": png(16, 6),
    "colour.ppm": b"P6\n8 8\n65535\n" + bytes(384),
    "grey.pgm": b"P5\n8 8\n65535\n" + bytes(128),
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("channels", [1, 3])
def test_deep_pixels_are_refused_grey_and_colour(pictures, name, channels):
    (pictures / "shapes/a" / name).write_bytes(DEEP[name])
    with pytest.raises(BenchError, match="not of 8 bits"):
        read(pictures, channels=channels)
    with pytest.raises(ValueError, match="not of 8 bits"):
        decoded_image(DEEP[name])


def test_float_tiff_is_refused():
    handle = io.BytesIO()
    Image.new("F", (8, 8)).save(handle, "TIFF")
    with pytest.raises(ValueError, match="not of 8 bits"):
        decoded_image(handle.getvalue())


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "BMP", "WEBP", "JPEG", "GIF"])
def test_eight_bit_formats_are_taken(mode, kind):
    handle = io.BytesIO()
    try:
        Image.new(mode, (8, 8)).save(handle, kind)
    except (OSError, KeyError, ValueError):
        pytest.skip("Pillow writes no such file")
    assert decoded_image(handle.getvalue()).size == (8, 8)


def test_hidden_texts_links_and_folders_are_no_authors(tmp_path, capsys):
    place = tmp_path / "texts"
    place.mkdir()
    for index in range(30):
        (place / f"author{index:02}.txt").write_text("a b c d e")
    for name in ("._author00.txt", ".hidden.txt"):
        (place / name).write_bytes(b"\0\xff")
    (place / "twice.txt").symlink_to(place / "author00.txt")
    raw = text_folder.read(tmp_path, Path(), None, folder="texts", words=5)
    assert sorted(name for name, _ in raw.tasks) == [
        f"author{index:02}" for index in range(30)
    ]
    assert "notice: " in capsys.readouterr().err


def zipped(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"1")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "a/1.png")


def tarred(path, names):
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "a/1.png"
        archive.addfile(link)


@pytest.mark.parametrize(("make", "name"), [(zipped, "x.zip"), (tarred, "x.tar")])
def test_archive_leaves_out_what_is_no_data(tmp_path, make, name, capsys):
    names = ["a/1.png", "__MACOSX/a/._1.png", "a/._1.png", ".x/1.png", "../1.png"]
    make(tmp_path / name, names)
    assert list(Copy(SOURCE, tmp_path / name).files) == ["a/1.png"]
    assert "notice: " in capsys.readouterr().err


def test_folder_of_a_published_set_leaves_out_what_is_no_data(tmp_path):
    for name in ("a/1.png", "a/._1.png", "__MACOSX/1.png", ".cache/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "a/2.png").symlink_to(tmp_path / "a/1.png")
    assert list(Copy(SOURCE, tmp_path).files) == ["a/1.png"]
    assert data_files(tmp_path) == [tmp_path / "a/1.png"]


@pytest.mark.parametrize("path", ["./a/1.png", "a/1.png", "a.b/c..png"])
def test_ordinary_paths_are_data(path):
    assert not is_by_product(path)
