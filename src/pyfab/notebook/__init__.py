"""Ranks in the cells of a notebook, and tables that follow what happens."""
