"""Evidence of a trial that went wrong: stacks, collectives, exit reasons."""
