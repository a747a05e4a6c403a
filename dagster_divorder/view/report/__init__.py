"""The report: one HTML file with the settings, the order that they gave, and the evidence.

`numbers` is its input, `check` and `sections` turn it into words, tables and charts, `html` fills the templates. No
module here reads a corpus.
"""
