"""What the library writes to logs of the module `logging`."""
