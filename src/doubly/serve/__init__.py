"""The local page of a run and its JSON API: one process for one model, on this machine only unless told otherwise.

schema       what JSON may look like: checked, and told in the words of JSON Schema
requests     what may be asked, with bounds
model        a run or an exported file, opened once: its rows in words, its weights, rows to begin with
answers      what is answered: completions, likelihoods, codes, new rows
csv_table    a CSV with missing cells, completed
openapi      the document of the API
worker       one thread that computes, and a queue that can be full
guards       who may ask, how much they may send, and the headers of every answer
app          the routes
run          a socket, and a server behind it

The files of the page lie in `page/`. Only `app`, `guards` and `run` need Starlette and uvicorn (the extra `serve`).
"""
