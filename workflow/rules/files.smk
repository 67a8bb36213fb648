"""The files of the configuration beside config/config.yaml, each read once before Snakemake reads it."""

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import overlaid
from dpfedbench.config.yaml_files import check_config_option, dropped_words, read_file

# The repository's experiments, then one's own, from a folder that the configuration names.
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
        # A module has the configuration that the other Snakefile gives it: it lies over the files, as --config would.
        files = [ROOT / "config/config.yaml", *SHIPPED, *OWN_FILES]
        config.update(overlaid(*map(read_file, files), config))
except BenchError as error:
    # One line on stderr and exit code 1; an exception would be shown with Snakemake's own stack.
    sys.exit(f"configuration: {error}")
