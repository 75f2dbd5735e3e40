"""The work behind the commands doctor, serve, fetch and demo, and `pyfab.nearest`."""
