"""The paper's Tables 1 to 3 with our rows, and the table of the smoke language, as cells."""
