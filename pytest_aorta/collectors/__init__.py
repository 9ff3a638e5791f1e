"""What looks into trials: where a fault starts, what is slow, where memory goes."""
