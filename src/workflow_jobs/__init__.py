"""Run the workflow's jobs: warm process, logs, manifests, processes, clusters.

Only the Snakefile, its scripts, tests and benchmarks import this package.
"""
