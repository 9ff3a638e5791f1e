"""Memory that tasks share, and what travels between processes: storages, arguments, callables."""
