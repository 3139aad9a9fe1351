"""The paper's tables: recipes of the rows, making them, and the page of results.

recipes      settings and published number of each row
tasks        a row in one of two ways, with a seed
result       the result of a row: filed, read again, in words
history      every score that the test rows of a row have had
costs        what a row costs, measured in a few seconds
plan         what is still to be made, the cheapest first
tables       the page of results beside the published numbers
budget       training and scoring within a given time
scoring      a row's own number, annealing alike, and weights compared
reproduce    making a row
queue        making all that is missing, several rows at a time
"""
