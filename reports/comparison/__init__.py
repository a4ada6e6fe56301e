"""Two rows in depth, on a terminal or as a page."""
