"""Two runs, cell by cell, and what differs around them."""
