"""Means, intervals, tests and budgets: every number that is drawn from several runs."""
