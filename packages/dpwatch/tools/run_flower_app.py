"""Run a Flower app folder in one process, without a SuperLink: its code is unedited.

    python -m dpwatch check -- python run_flower_app.py FOLDER [NODES] [KEY=VALUE ...]

It imports the components that `pyproject.toml` names, and calls the ServerApp with a grid
that calls the ClientApp (`dpwatch.adapters.flower_nodes.InProcess`). KEY=VALUE changes
the app's run configuration, as `flwr run --run-config` does.
"""

import importlib
import sys
import tomllib
from pathlib import Path

from flwr.app import Context, RecordDict

from dpwatch.adapters.flower_nodes import InProcess


def main(folder: str, nodes: str = "10", *changes: str) -> None:
    """Run the app of a folder with a number of nodes."""
    text = Path(folder, "pyproject.toml").read_text(encoding="utf-8")
    app = tomllib.loads(text)["tool"]["flwr"]["app"]
    config = dict(app.get("config", {}))
    for change in changes:
        key, _, value = change.partition("=")
        config[key] = type(config[key])(value)
    sys.path.insert(0, str(Path(folder).resolve()))
    server = _component(app["components"]["serverapp"])
    client = _component(app["components"]["clientapp"])
    count = int(nodes)
    grid = InProcess(
        client,
        {
            1000 + number: {"partition-id": number, "num-partitions": count}
            for number in range(count)
        },
        run_config=config,
    )
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config
    )
    server(grid, context)


def _component(name: str):
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    main(*sys.argv[1:])
