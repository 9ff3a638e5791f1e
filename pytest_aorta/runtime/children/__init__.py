"""What runs inside the child processes of a worker."""
