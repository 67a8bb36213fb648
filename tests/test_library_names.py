"""The counts of lines and names beside other libraries (docs/add-a-part.md)."""

from pathlib import Path

from tools import library_names


def test_library_names_counts_definitions_that_exist() -> None:
    library = library_names.our_library()
    for job, by_library in library_names.JOBS.items():
        for name, sources in by_library.items():
            if name.startswith("here"):
                count = library_names.Count(library, sources)
                assert count.lines >= 7, (job, name)
                assert len(count.names) >= 6, (job, name)


def test_library_names_leaves_out_own_names_and_numpy(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/base.py").write_text(
        "class Base:\n    size = 1\n    def draw(self, index): ...\n",
        encoding="utf-8",
    )
    (tmp_path / "lib/part.py").write_text(
        "import numpy as np\n"
        "from lib.base import Base\n\n"
        "class Part(Base):\n"
        '    """A docstring is no line."""\n\n'
        "    size = 2\n"
        "    def draw(self, index, own):\n"
        "        # A comment is no line.\n"
        "        return self.shift(np.sum(own, axis=0), own['rate'])\n"
        "    def shift(self, total, rate):\n"
        "        return total.reshape(-1) + rate\n",
        encoding="utf-8",
    )
    library = library_names.Library(tmp_path, ["lib"])
    count = library_names.Count(library, {"lib/part.py": "Part"})
    assert count.lines == 6
    assert count.names == {"Base", "size", "draw", "index", "rate"}
