"""All combinations of some values, times seeds: a run each, begun, resumed or left as it is."""
