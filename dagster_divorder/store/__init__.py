"""Files: everything the pipeline keeps between runs, and everything it hands over."""
