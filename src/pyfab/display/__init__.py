"""Tables and pictures that show things in a terminal or a notebook. They know nothing of memory or peers."""
