"""The commands that import, export, back up, restore, copy or map a store of documents."""
