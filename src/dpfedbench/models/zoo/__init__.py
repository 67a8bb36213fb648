"""Networks, one file each, found by their folder. See docs/your-data-and-model.md."""
