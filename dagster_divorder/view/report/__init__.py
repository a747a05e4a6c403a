"""The report: one HTML file that shows what was asked, what came of it, and the evidence.

One section a file, `page` puts them together. Numbers come in, a page goes out; no file is opened.
"""
