"""The commands of `python -m decompops`, a file for each, and what they share. `cli.py` puts them together."""
