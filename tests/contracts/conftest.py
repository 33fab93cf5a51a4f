"""The chapters are importable by their names; the root's pytest settings put them on the path."""
