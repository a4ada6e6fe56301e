"""The report itself: one HTML page and its Markdown twin."""
