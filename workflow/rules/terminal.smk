"""The terminal. `--config terminal=snakemake` keeps Snakemake's own messages in place of the line of progress."""

import sys

from snakemake.logging import logger
from snakemake_interface_executor_plugins.settings import ExecMode

from workflow_jobs import terminal

TERMINAL = None
TERMINAL_CHOSEN = str(config.get("terminal", "progress"))
if TERMINAL_CHOSEN not in ("progress", "snakemake"):
    sys.exit(
        f"configuration: terminal is {TERMINAL_CHOSEN}: expected progress or snakemake"
    )
logger.addFilter(terminal.is_no_page_warning)
if TERMINAL_CHOSEN == "progress":
    logger.addFilter(terminal.is_no_file_notice)
# Not in a job that runs Snakemake itself, and not where Snakemake's text is the answer: a dry run, --verbose or --quiet.
if (
    TERMINAL_CHOSEN == "progress"
    and workflow.exec_mode == ExecMode.DEFAULT
    and not workflow.output_settings.dryrun
    and not workflow.output_settings.verbose
    and not workflow.output_settings.quiet
):
    TERMINAL = terminal.install(
        logger, sys.stdout if workflow.output_settings.stdout else sys.stderr
    )
