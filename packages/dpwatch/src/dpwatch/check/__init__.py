"""`dpwatch check`: an unedited script under watch, and what is proven of its training.

- `command` runs the script and writes the report.
- `startup/sitecustomize.py` installs `hooks` in each Python process of the script.
- `hooks` finds imports of a library, and its module here puts a watch around its calls.
- `text_search` looks for pitfalls in the script's own files.
"""
