"""What regions are described by, and given away by in parts."""
