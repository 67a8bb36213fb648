"""Image data sets, simulated clients and few-shot tasks."""
