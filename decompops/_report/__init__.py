"""`python -m decompops report`: what a machine is, and how right and how fast decompops is on it.

`sections.py` lists the sections of a report. `run.py` runs them within a time limit and writes their results as
JSON. `page.py` makes the page in Markdown from the JSON alone, and `study.py` one page from several reports.
"""
