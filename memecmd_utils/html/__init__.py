"""Page templates; values are escaped when they are rendered."""
