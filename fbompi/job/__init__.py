"""Runs as batch jobs: Slurm scripts whose runs are checkpointed before time is up, and go on until they are done."""
