"""What studies and runs say of themselves, and what the paper published."""
