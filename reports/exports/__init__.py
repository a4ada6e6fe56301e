"""Tables and data for others to work with: LaTeX, CSV and Parquet."""
