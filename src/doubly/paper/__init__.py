"""The paper's tables: recipes of the rows, making one, and the page of results.

recipes      settings and published number of each row
tables       the page of what was found, beside what was published
reproduce    making a row
"""
