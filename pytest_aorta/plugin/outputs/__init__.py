"""What a run leaves: trial files, matrix, report, step summary, exit status."""
