"""The command ``pytest-aorta``, one file per subcommand."""
