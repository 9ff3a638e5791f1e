"""What runs beside the slot of a trial, outside of its processes."""
