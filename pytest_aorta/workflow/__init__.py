"""Recipes: actions on the directories of a workspace, after the Row workflow engine."""
