"""What was posted and when it was done, as a time line."""
