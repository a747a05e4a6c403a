"""The mathematics: arrays in, frozen results out. Nothing here opens a file or imports an orchestrator or a network."""
