"""Print the code cells of a notebook as a script, less their shell commands.

    python notebook_script.py NOTEBOOK.ipynb > SCRIPT.py

A line that begins with ! or % becomes `pass`. Every other line stays as it is.
"""

import json
import sys
from pathlib import Path


def main(path: str) -> None:
    """Print the script of a notebook."""
    notebook = json.loads(Path(path).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        for line in "".join(cell["source"]).splitlines():
            stripped = line.lstrip()
            indent = line[: len(line) - len(stripped)]
            print(f"{indent}pass" if stripped.startswith(("!", "%")) else line)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
