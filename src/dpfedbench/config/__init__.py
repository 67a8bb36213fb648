"""Settings of a run, read from plain values and checked.

- `part`: base classes of sections and parts;
- `schema`: what a key accepts, and how pydantic reads its value;
- `kinds`: where the parts of a family are found;
- `merge`: overlays of a run, merged and reduced to what its method has;
- `messages`: faults in one line;
- `yaml_files`: checks of configuration files.
"""
