"""What ends trials before their number does."""
