"""Named scenarios, one plain TOML file each, and their loader."""
