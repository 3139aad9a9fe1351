"""The paper's tables: recipes of the rows, making one, and the page of results.

recipes      settings and published number of each row
result       the result of a row: filed, read again, in words
history      every score that the test rows of a row have had
tables       the page of results beside the published numbers
budget       training and scoring within a given time
reproduce    making a row
"""
