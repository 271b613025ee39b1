"""One experiment per file: what was claimed, what is run, how it is drawn, and what makes a claim hold."""
