"""What is learnt of a trial that did not end well: stacks, collectives, the ends of its logs, its last words."""
