"""The command `python -m decompops report`: it measures how accurate and how fast decompops is on a machine.

`sections.py` lists the sections of a report. `run.py` runs the sections within a time limit, and writes their results
as JSON. `page.py` makes a page in Markdown from the JSON of one report. `study.py` makes a page from several reports.
"""
