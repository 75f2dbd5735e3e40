"""The memory of stores: copies of samples, tables of ragged fields, batches."""
