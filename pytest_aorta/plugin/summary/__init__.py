"""What the terminal says of trials: status words, failures, table, summary."""
