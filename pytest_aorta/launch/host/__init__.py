"""What runs on the host of a trial, outside of the trial's processes."""
