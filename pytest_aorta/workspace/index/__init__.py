"""What is known of a workspace without reading its files again: completions, values, submitted jobs."""
