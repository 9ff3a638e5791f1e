"""Which failing trials have failed alike."""
