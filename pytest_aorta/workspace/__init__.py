"""Results on disk: where they lie, how they are written, where earlier ones go."""
