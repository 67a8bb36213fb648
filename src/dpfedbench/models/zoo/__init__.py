"""Networks, one file each, found by their folder. See docs/add-a-model.md."""
