"""Write docs/combinations.md: combinations of sums and the rule of each.

`uv run python tools/generate_combinations.py` writes the page; a test compares it.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.dpsum.combinations import page

    (ROOT / "docs" / "combinations.md").write_text(page(), encoding="utf-8")
