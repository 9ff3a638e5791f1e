"""pytest items of a recipe: its actions on their directories."""
