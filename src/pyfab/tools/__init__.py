"""What the command line is made of: doctor, serve, fetch, demo."""
