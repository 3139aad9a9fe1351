"""The rows of the paper's tables, as recipes: a file for each table."""
