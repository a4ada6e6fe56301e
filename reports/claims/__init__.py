"""The statements of the paper and its commentators, and what a study's data makes of them."""
