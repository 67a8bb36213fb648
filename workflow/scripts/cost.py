"""Say what the configuration's runs cost on this machine."""

import tempfile
from pathlib import Path

from dpfedbench.manifest import RESULTS, rule_job, seal

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "cost") as logger, tempfile.TemporaryDirectory() as room:
        from dpfedbench.cost import Calibration, report
        from dpfedbench.methods import read_run

        machine, given = snakemake.config["machine"], snakemake.params
        calibration = Calibration(
            Path(RESULTS, "cost"),
            room=Path(room),
            holdings=given.holdings,
            prepared=Path(RESULTS, "data"),
            threads=snakemake.threads,
            device=machine["device"],
            kernels=machine["kernels"] == "auto",
        )
        written = report(
            [read_run(values) for values in given.runs],
            calibration,
            Path(given.report),
            cores=given.cores,
            say=logger.info,
        )
        seal("cost", written)
