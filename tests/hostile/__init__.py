"""Hostile input for everything that reads: what is fed to which reader, how it is made, and what is held against it.

`tests/fuzz.py` feeds it for minutes, led by coverage; `tests/test_fuzz.py` for seconds. A reader may refuse with one
clear line (`UserError`; messages: `ValueError`) and nothing else: it raises nothing else, takes no memory on the word
of a header, writes nothing outside of the place it was given and runs no code.
"""
