"""One-sided transport in the style of an MPI library's lowest layer."""
