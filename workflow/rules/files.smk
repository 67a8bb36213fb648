"""Configuration files. Each is checked here before Snakemake reads it, for one-line messages about faults."""

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import overlaid
from dpfedbench.config.yaml_files import check_config_option, dropped_words, read_file

# Experiments of the repository, then those of the user's folder (`experiments_folder`).
SHIPPED = sorted(Path(ROOT, "config/experiments").glob("*.yaml"))
OWN = config.get("experiments_folder")
OWN_FILES = sorted(Path(OWN).glob("*.yaml")) if isinstance(OWN, str) else []
GIVEN = [*OWN_FILES, *workflow.config_settings.configfiles]
for option, words in dropped_words(sys.argv[1:]):
    print(
        f"notice: Snakemake keeps only the last {option}: {' '.join(words)} is not used. Give all after one {option}",
        file=sys.stderr,
    )
try:
    for path in [ROOT / "config/config.yaml", *SHIPPED, *GIVEN]:
        read_file(path)
    check_config_option(workflow.config_settings.config_args or ())
    if workflow.modifier.skip_configfile:
        # As a module, the workflow gets its configuration from the other Snakefile. It overrides the files, like --config.
        files = [ROOT / "config/config.yaml", *SHIPPED, *OWN_FILES]
        config.update(overlaid(*map(read_file, files), config))
except BenchError as error:
    # One line on stderr and exit code 1. Snakemake would show an exception with its own stack.
    sys.exit(f"configuration: {error}")
