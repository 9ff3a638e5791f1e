"""What runs inside the process of a trial, or of one of its ranks."""
