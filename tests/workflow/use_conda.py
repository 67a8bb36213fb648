"""One figure of the smoke preset with `--use-conda`, from a Snakemake that has nothing
else; conda is stood in for.

    uv run python tests/workflow/use_conda.py RESULTS

RESULTS is the results folder of a finished run of the smoke preset without conda. The
script makes an environment with Snakemake alone, as its own requirements have it, and
calls the workflow from there, so that the plan is read without this project's packages.
The rules' environment comes from workflow/envs/dpfedbench.yaml by conda_standin/, which
has uv install the file's pip section: no channel and no solver is tried. Every file but
logs and costs has to have the bits of RESULTS. Then a table of versions is made in that
environment, and must name them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from compare import differences  # noqa: E402

FIGURE = "results/smoke/figures/adap-dp-fl/figure4d.png"  # of one run: seven jobs


def main(wanted: Path) -> None:
    """Make both environments and the figure in a temporary folder, and compare."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]["dependencies"]
    snakemake = next(text for text in required if text.startswith("snakemake=="))
    with tempfile.TemporaryDirectory(prefix="use-conda-") as folder:
        driver, standin = Path(folder, "driver"), Path(folder, "conda")
        shutil.copytree(ROOT / "tests" / "workflow" / "conda_standin", standin)
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        own = Path(sys.prefix, "bin")
        others = [
            place for place in kept["PATH"].split(os.pathsep) if Path(place) != own
        ]
        uv = [str(Path(found).parent)] if (found := shutil.which("uv")) else []
        path = os.pathsep.join(
            [str(standin / "bin"), str(driver / "bin"), *others, *uv]
        )
        environment = kept | {"PATH": path, "UV_NO_CONFIG": "1"}

        def must(*command: str) -> None:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]

        started = time.monotonic()
        must(
            "uv",
            "venv",
            "-q",
            "--python",
            f"{sys.version_info[0]}.{sys.version_info[1]}",
            str(driver),
        )
        must("uv", "pip", "install", "-q", "--python", str(driver), snakemake)
        absent = (
            "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('numpy',"
            " 'torch', 'dpfedbench'))))"
        )
        must(str(driver / "bin" / "python"), "-c", absent)
        command = [
            str(driver / "bin" / "snakemake"),
            "--snakefile",
            str(ROOT / "Snakefile"),
            "--cores",
            "all",
        ]
        command += [
            "--use-conda",
            FIGURE,
            "--configfile",
            str(ROOT / "config/presets/smoke.yaml"),
        ]
        must(*command)
        found, compared = differences(Path(folder, "results"), wanted, part=True)
        assert not found, "\n".join(found)
        (rules,) = (
            path
            for path in Path(folder, ".snakemake", "conda").iterdir()
            if path.is_dir()
        )
        code = "import json; from workflow_jobs.provenance import versions; "
        code += f"print(json.dumps(versions({str(ROOT)!r})))"
        run = [str(rules / "bin" / "python"), "-c", code]
        said = subprocess.run(
            run,
            env=environment | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            check=True,
        )
        named = json.loads(said.stdout)
        assert named["torch"][0].isdigit() and named["snakemake"] == "not installed", (
            named
        )
        seconds = time.monotonic() - started
    print(
        f"   --use-conda: {compared} files compared, all equal; {seconds:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
