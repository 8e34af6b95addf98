"""The commands of `python -m decompops`, each in its own file, and their helpers. `cli.py` runs the commands."""
