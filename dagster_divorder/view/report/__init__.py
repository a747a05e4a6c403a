"""The report: one HTML file that shows what was asked, what came of it, and the evidence.

`numbers` says what it is drawn from, `check` and `sections` put that into words, tables and charts, `html` fills the
templates. Numbers come in, a page goes out; no corpus is read.
"""
