"""What could make a verdict wrong: drift, speed, variables that nothing reads."""
