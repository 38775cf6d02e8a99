"""What models answered, by key: the store, the vectors, and its care."""
