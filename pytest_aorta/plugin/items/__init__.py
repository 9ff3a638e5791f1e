"""pytest items whose trials were asked for by name, by a file, by a search or by records."""
