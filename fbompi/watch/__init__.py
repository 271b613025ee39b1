"""Following a run while it is written: one look, a page of it, the screen it is shown on."""
