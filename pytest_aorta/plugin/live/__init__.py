"""The live view: lines below what pytest writes, while trials run."""
