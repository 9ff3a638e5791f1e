"""What a package outside pytest-aorta looks like: it imports nothing of pytest-aorta."""
