"""Values of tasks: output slots, and their way between processes."""
