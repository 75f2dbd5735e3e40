"""What an endpoint is asked to do."""
