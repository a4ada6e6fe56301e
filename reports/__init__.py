"""Tables, plots and pages from run records."""
