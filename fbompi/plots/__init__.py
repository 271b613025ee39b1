"""Pictures of runs, one kind per file; drawn with matplotlib, which is optional."""
