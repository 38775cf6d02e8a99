"""Machinery that knows neither paper: files, models, recordings, statistics, drawing."""
