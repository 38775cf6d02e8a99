"""Around a run: strict execution of notebooks, what a machine lacks, what a run will cost."""
