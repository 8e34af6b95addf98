"""The command `python -m decompops report`: it measures how accurate and how fast decompops is on a machine.

`sections.py` lists the sections of a report. `run.py` runs them within a time limit and writes their results as
JSON. `page.py` makes the page in Markdown from the JSON alone, and `study.py` one page from several reports.
"""
