"""Starting ranks on this machine: `pyfab.spawn`."""
