"""What tests have in common: the stage on which pytest runs as a command, a look at processes, and waiting."""
