"""Trials and scripts inside ordinary tests."""
