"""Configuration files. Each is checked here before Snakemake reads it, for one-line messages about faults."""

import traceback

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import overlaid, shipped_files
from dpfedbench.config.yaml_files import check_config_option, dropped_words, read_file
from dpfedbench.plugins import use_configured

# A folder given by --directory may have a configuration of its own, as .test has. As a module, the workflow takes none.
FOLDER_FILE = Path("config/config.yaml")
IS_READ = (
    FOLDER_FILE.is_file()
    and not FOLDER_FILE.samefile(ROOT / "config/config.yaml")
    and not workflow.modifier.skip_configfile
)
FOLDER_FILES = [FOLDER_FILE] if IS_READ else []
try:
    for path in FOLDER_FILES:
        read_file(path)
except BenchError as error:
    sys.exit(f"configuration: {error}")

# Its preset and plugins are known from here on. The Snakefile reads it again, over the experiments.
for file in FOLDER_FILES:

    configfile: file


try:
    use_configured(config)
except BenchError as error:
    sys.exit(f"configuration: {error}")
except Exception:
    # Python's own traceback has the file and line of a fault in a plugin. Snakemake would shorten it.
    traceback.print_exc()
    sys.exit(1)

# Experiments of the repository and of plugins, their small sizes, without a preset what a first look leaves out of them, then
# those of the user's folder (`experiments_folder`).
DEFAULTS, *SHIPPED = shipped_files(
    ROOT / "config", config.get("preset"), config.get("sizes", "small")
)
OWN = config.get("experiments_folder")
OWN_FILES = sorted(Path(OWN).glob("*.yaml")) if isinstance(OWN, str) else []
GIVEN = [*OWN_FILES, *FOLDER_FILES, *workflow.config_settings.configfiles]
for option, words in dropped_words(sys.argv[1:]):
    print(
        f"notice: Snakemake keeps only the last {option}: {' '.join(words)} is not used. Give all after one {option}",
        file=sys.stderr,
    )
try:
    for path in [DEFAULTS, *SHIPPED, *GIVEN]:
        read_file(path)
    check_config_option(workflow.config_settings.config_args or ())
    if workflow.modifier.skip_configfile:
        # As a module, the workflow gets its configuration from the other Snakefile. It overrides the files, like --config.
        files = [DEFAULTS, *SHIPPED, *OWN_FILES]
        config.update(overlaid(*map(read_file, files), config))
except BenchError as error:
    # One line on stderr and exit code 1. Snakemake would show an exception with its own stack.
    sys.exit(f"configuration: {error}")
