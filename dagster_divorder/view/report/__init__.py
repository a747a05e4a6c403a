"""The report: one HTML file with the settings, the resulting order, and the evidence.

`numbers` is the report's input, `check` and `sections` turn it into words, tables and charts, `html` fills the
templates. No module here reads a corpus.
"""
