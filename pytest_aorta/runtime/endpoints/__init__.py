"""What the engine dispatches to: child processes, hosts, functions that run jobs."""
