"""Tables and pictures that show things in a terminal or a notebook; knows nothing of memory or peers."""
