"""Groups of ranks and windows onto their memory."""
