"""Make one figure of the smoke preset with `--use-conda` and a stand-in for conda, from
an environment with Snakemake alone.

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


def run(command: list[str], folder: str, environment: dict[str, str]) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


def make_environment(driver: Path, conda: Path) -> dict[str, str]:
    """Return variables with the driver, the stand-in and uv on the path, and nothing of
    this project's environment.
    """
    shutil.copytree(ROOT / "tests" / "workflow" / "conda_standin", conda)
    dropped = ("PYTHONPATH", "VIRTUAL_ENV")
    values = {key: value for key, value in os.environ.items() if key not in dropped}
    folders = [str(conda / "bin"), str(driver / "bin")]
    for folder in values["PATH"].split(os.pathsep):
        if Path(folder) != Path(sys.prefix, "bin"):
            folders.append(folder)
    if uv := shutil.which("uv"):
        folders.append(str(Path(uv).parent))
    return values | {"PATH": os.pathsep.join(folders), "UV_NO_CONFIG": "1"}


def main(expected: Path) -> None:
    """Make both environments and the figure in a temporary folder, and compare."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    required = pyproject["project"]["dependencies"]
    snakemake = next(text for text in required if text.startswith("snakemake=="))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="use-conda-") as folder:
        driver = Path(folder, "driver")
        environment = make_environment(driver, Path(folder, "conda"))
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        venv = ["uv", "venv", "-q", "--python", python, str(driver)]
        run(venv, folder, environment)
        install = ["uv", "pip", "install", "-q", "--python", str(driver), snakemake]
        run(install, folder, environment)
        absent = (
            "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('numpy',"
            " 'torch', 'dpfedbench'))))"
        )
        run([str(driver / "bin" / "python"), "-c", absent], folder, environment)
        smoke = str(ROOT / "config/presets/smoke.yaml")
        command = [str(driver / "bin" / "snakemake"), "--cores", "all", "--use-conda"]
        command += ["--snakefile", str(ROOT / "Snakefile"), FIGURE]
        run([*command, "--configfile", smoke], folder, environment)
        faults, compared = differences(Path(folder, "results"), expected, part=True)
        assert not faults, "\n".join(faults)
        environments = Path(folder, ".snakemake", "conda").iterdir()
        (rules,) = (path for path in environments if path.is_dir())
        code = "import json; from workflow_jobs.provenance import versions; "
        code += f"print(json.dumps(versions({str(ROOT)!r})))"
        with_sources = environment | {"PYTHONPATH": str(ROOT / "src")}
        python = str(rules / "bin" / "python")
        versions = json.loads(run([python, "-c", code], folder, with_sources))
        assert versions["torch"][0].isdigit(), versions
        assert versions["snakemake"] == "not installed", versions
    seconds = time.monotonic() - started
    print(
        f"   --use-conda: {compared} files compared, all equal; {seconds:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
