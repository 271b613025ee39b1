"""`fbompi reproduce`: the papers' experiments, run again, with what came out beside what was claimed."""
