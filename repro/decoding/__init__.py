"""Search and scores."""
