"""Orders of samples other than the plain shuffle."""
