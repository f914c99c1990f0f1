"""Models: from a name to a local file, downloaded or made, and what its metadata says."""
