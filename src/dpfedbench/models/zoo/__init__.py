"""Networks, one file each, found by their place. See docs/add-a-model.md."""
