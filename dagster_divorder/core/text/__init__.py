"""What texts alone tell: how hard they are to predict, and which are near copies."""
