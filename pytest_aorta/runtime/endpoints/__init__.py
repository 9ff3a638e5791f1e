"""What the dispatcher sends tasks to: child processes, hosts, functions that run jobs."""
