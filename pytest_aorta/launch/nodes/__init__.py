"""Trials that run on several nodes: which one this is, where they meet, and what they tell each other."""
