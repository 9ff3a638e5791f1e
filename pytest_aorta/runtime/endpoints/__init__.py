"""What tasks are dispatched to: child processes, hosts, functions that run jobs."""
